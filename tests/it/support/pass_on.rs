//! What an engine that stands around another one passes on as it is: all but commits and reads.

/// The methods of a `Store` that has the real one in `self.inner`.
macro_rules! pass_on {
    () => {
        fn allot(&self) -> quipu::store::LogId {
            self.inner.allot()
        }

        fn find(
            &self,
            key: &quipu::model::SessionKey,
        ) -> Result<Option<quipu::store::Found>, quipu::store::StoreError> {
            self.inner.find(key)
        }

        fn list(
            &self,
            filter: &quipu::store::ListFilter,
            after: Option<quipu::store::ListCursor>,
            count: usize,
        ) -> Result<quipu::store::ListPage, quipu::store::StoreError> {
            self.inner.list(filter, after, count)
        }

        fn note(&self, log: quipu::store::LogId, note: quipu::store::Note) {
            self.inner.note(log, note);
        }

        fn noted(&self, log: quipu::store::LogId) -> Option<quipu::store::Note> {
            self.inner.noted(log)
        }

        fn extents(
            &self,
            log: quipu::store::LogId,
        ) -> Result<std::sync::Arc<[quipu::store::Extent]>, quipu::store::StoreError> {
            self.inner.extents(log)
        }

        fn forks(&self, log: quipu::store::LogId) -> Result<u64, quipu::store::StoreError> {
            self.inner.forks(log)
        }

        fn needs(
            &self,
            log: quipu::store::LogId,
            from: quipu::model::Seq,
            until: quipu::model::Seq,
        ) -> Result<bool, quipu::store::StoreError> {
            self.inner.needs(log, from, until)
        }

        fn remains(
            &self,
            after: Option<quipu::store::LogId>,
            count: usize,
        ) -> Result<Vec<quipu::store::Remains>, quipu::store::StoreError> {
            self.inner.remains(after, count)
        }

        fn changes(
            &self,
            from: quipu::store::Position,
            bytes_max: usize,
        ) -> Result<quipu::store::ChangePage, quipu::store::StoreError> {
            self.inner.changes(from, bytes_max)
        }

        fn sessions(
            &self,
            after: quipu::store::LogId,
            count: usize,
        ) -> Result<Vec<quipu::store::Session>, quipu::store::StoreError> {
            self.inner.sessions(after, count)
        }

        fn health(&self) -> quipu::store::Health {
            self.inner.health()
        }

        fn position(&self) -> quipu::store::Position {
            self.inner.position()
        }

        fn id(&self) -> [u8; 16] {
            self.inner.id()
        }

        fn close(&self) {
            self.inner.close();
        }
    };
}
