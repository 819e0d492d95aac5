//! The server and its clients, as processes and in this one.
#![allow(missing_docs, reason = "test code")]
