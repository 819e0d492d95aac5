//! One response of a model, its calls and their results: what becomes a step.

/// A surface event that is not a response: its message, ready to store.
#[derive(Clone, Debug)]
pub(super) struct Item {
    /// When.
    pub(super) time_ms: i64,
    /// The data of the event.
    pub(super) data: String,
    /// The names by which later records speak of it.
    pub(super) key: Option<String>,
}

/// A response in the making.
#[derive(Clone, Debug, Default)]
pub(super) struct Response {
    /// When its last part came.
    pub(super) time_ms: i64,
    /// The literal of its message id.
    pub(super) id: String,
    /// The literal of the provider.
    pub(super) provider: String,
    /// The literal of the model.
    pub(super) model: String,
    /// Content blocks.
    pub(super) blocks: Vec<String>,
    /// Calls in the order in which they were announced.
    pub(super) calls: Vec<Call>,
    /// Token counts, as JSON.
    pub(super) usage: Option<String>,
    /// The names by which later records speak of it.
    pub(super) keys: Vec<String>,
    /// It was cut off by the limit of its length.
    pub(super) is_cut: bool,
}

/// A tool call, as literals.
#[derive(Clone, Debug)]
pub(super) struct Call {
    /// When it was announced.
    pub(super) time_ms: i64,
    /// The content of its id.
    pub(super) key: Vec<u8>,
    /// The literal of its id.
    pub(super) id: String,
    /// The literal of its name.
    pub(super) name: String,
    /// The literal of its arguments.
    pub(super) arguments: String,
    /// What came back.
    pub(super) answer: Option<Answer>,
}

/// A tool result.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    /// When.
    pub(super) time_ms: i64,
    /// The literal of the message id.
    pub(super) id: String,
    /// Content blocks.
    pub(super) blocks: Vec<String>,
    /// Whether the tool failed, if the file says.
    pub(super) is_error: Option<bool>,
    /// What else the harness knows, as JSON.
    pub(super) meta: Option<String>,
    /// The name by which later records speak of it.
    pub(super) key: Option<String>,
    /// Its place among the results of the step.
    pub(super) order: usize,
}

impl Call {
    /// The block that announces it.
    pub(super) fn block(&self) -> String {
        let Self { id, name, arguments, .. } = self;
        format!("{{\"type\":\"tool-call\",\"id\":{id},\"name\":{name},\"arguments\":{arguments}}}")
    }

    pub(super) fn started(&self, place: &str) -> String {
        let Self { id, name, arguments, .. } = self;
        format!("{{{place},\"callId\":{id},\"name\":{name},\"arguments\":{arguments}}}")
    }

    pub(super) fn answered(&self, answer: &Answer, place: &str) -> String {
        let call = &self.id;
        let Answer { id, blocks, .. } = answer;
        let content = blocks.join(",");
        let failed = answer.is_error.map(|failed| format!(",\"isError\":{failed}")).unwrap_or_default();
        let meta = answer.meta.as_ref().map(|meta| format!(",\"meta\":{meta}")).unwrap_or_default();
        format!(
            "{{{place},\"message\":{{\"id\":{id},\"role\":\"user\",\"source\":{{\"kind\":\"tool\",\"callId\":{call}}},\
             \"content\":[{{\"type\":\"tool-result\",\"toolCallId\":{call},\"content\":[{content}]{failed}}}]}}{meta}}}"
        )
    }
}

impl Response {
    pub(super) fn message(&self, place: &str) -> String {
        let Self { id, provider, model, .. } = self;
        let content = self.blocks.join(",");
        let usage = self.usage.as_ref().map(|usage| format!(",\"usage\":{usage}")).unwrap_or_default();
        format!(
            "{{{place},\"message\":{{\"id\":{id},\"role\":\"assistant\",\"content\":[{content}],\
             \"source\":{{\"kind\":\"model\",\"provider\":{provider},\"model\":{model}}}}}{usage}}}"
        )
    }

    /// Whether every call has its result.
    pub(super) fn is_answered(&self) -> bool {
        self.calls.iter().all(|call| call.answer.is_some())
    }
}
