//! `SessionService`.

use tonic::{Request, Response, Status};

use super::convert;
use super::pb;
use super::pb::session_service_server::SessionService;
use crate::model::{Namespace, SessionId};
use crate::service::{Error, Reason, Service};
use crate::store::{ListCursor, ListFilter, LogId};

/// The adapter.
pub(super) struct Sessions {
    pub(super) service: Service,
}

const PAGE_SIZE: u32 = 100;
const PAGE_SIZE_MAX: u32 = 1000;

#[tonic::async_trait]
impl SessionService for Sessions {
    async fn create_session(
        &self,
        request: Request<pb::CreateSessionRequest>,
    ) -> Result<Response<pb::CreateSessionResponse>, Status> {
        let request = request.into_inner();
        let header = request.header.ok_or_else(|| missing("header"))?;
        let key = convert::key(&request.namespace, &header.id)?;
        let is_timed = header.created_at_ms.is_some();
        let what = (convert::header(header)?, convert::profile(request.profile)?, is_timed);
        let (session, already_existed) = self.service.create(key, what, convert::first_claim(request.claim)?).await?;
        Ok(Response::new(pb::CreateSessionResponse { session: Some(session.into()), already_existed }))
    }

    async fn get_session(
        &self,
        request: Request<pb::GetSessionRequest>,
    ) -> Result<Response<pb::GetSessionResponse>, Status> {
        let request = request.into_inner();
        let session = self.service.get(&convert::key(&request.namespace, &request.session_id)?).await?;
        Ok(Response::new(pb::GetSessionResponse { session: Some(session.into()) }))
    }

    async fn list_sessions(
        &self,
        request: Request<pb::ListSessionsRequest>,
    ) -> Result<Response<pb::ListSessionsResponse>, Status> {
        let request = request.into_inner();
        let count = match request.page_size {
            0 => PAGE_SIZE,
            size if size > PAGE_SIZE_MAX => {
                let problem = format!("is {size}; at most {PAGE_SIZE_MAX} are allowed");
                return Err(Error::field(Reason::InvalidRequest, "page_size", problem).into());
            }
            size => size,
        };
        let filter = filter(&request)?;
        let after = decode_token(&request.page_token, &filter)?;
        let (sessions, next) = self.service.list(filter.clone(), after, count as usize).await?;
        let sessions = sessions.into_iter().map(Into::into).collect();
        let next_page_token = next.map(|next| encode_token(next, &filter)).unwrap_or_default();
        Ok(Response::new(pb::ListSessionsResponse { sessions, next_page_token }))
    }

    async fn delete_session(
        &self,
        request: Request<pb::DeleteSessionRequest>,
    ) -> Result<Response<pb::DeleteSessionResponse>, Status> {
        let request = request.into_inner();
        let key = convert::key(&request.namespace, &request.session_id)?;
        let incarnation = convert::incarnation(request.incarnation.as_deref())?;
        let head = self.service.delete(&key, incarnation, request.epoch).await?;
        Ok(Response::new(pb::DeleteSessionResponse { head: Some(head.into()) }))
    }
}

pub(super) fn missing(field: &str) -> Error {
    Error::field(Reason::InvalidRequest, field, "is missing")
}

fn filter(request: &pb::ListSessionsRequest) -> Result<ListFilter, Error> {
    if !request.id_prefix.is_empty() {
        SessionId::new(&request.id_prefix)?;
    }
    Ok(ListFilter {
        namespace: Namespace::new(&request.namespace)?.as_str().to_owned(),
        id_prefix: request.id_prefix.clone(),
        cwd: request.cwd.clone(),
        parent_session: request.parent_session.clone(),
        created_ms: (request.created_from_ms, request.created_until_ms),
        updated_ms: (request.updated_from_ms, request.updated_until_ms),
    })
}

/// A token: the place in the list, and a checksum that ties it to the filters.
fn encode_token(at: ListCursor, filter: &ListFilter) -> String {
    format!("{:x}.{:x}.{:x}", at.updated_ms, at.log.0, checksum(at, filter))
}

fn decode_token(token: &str, filter: &ListFilter) -> Result<Option<ListCursor>, Error> {
    if token.is_empty() {
        return Ok(None);
    }
    let mut parts = token.splitn(3, '.').map(|part| u64::from_str_radix(part, 16).ok());
    if let (Some(Some(updated_ms)), Some(Some(log)), Some(Some(sum))) = (parts.next(), parts.next(), parts.next()) {
        let at = ListCursor { updated_ms, log: LogId(log) };
        if sum == u64::from(checksum(at, filter)) {
            return Ok(Some(at));
        }
    }
    Err(Error::field(Reason::BadPageToken, "page_token", "is not of this list; start without one"))
}

fn checksum(at: ListCursor, filter: &ListFilter) -> u32 {
    crc32c::crc32c(format!("{at:?} {filter:?}").as_bytes())
}
