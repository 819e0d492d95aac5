//! Content blocks, from the words of other harnesses into those of a log. Texts keep their spelling.

use crate::model::json::{self, Value, quote};

/// A text block.
pub(super) fn text(literal: &str) -> String {
    format!("{{\"type\":\"text\",\"text\":{literal}}}")
}

/// A block as it is, if a log can hold it; otherwise what is wrong with it.
pub(super) fn verbatim(block: Value<'_, '_>) -> Result<String, String> {
    match json::check(block.raw().as_bytes()) {
        Ok(()) if block.is_object() => Ok(block.raw().to_owned()),
        Ok(()) => Err("a content block is no object".to_owned()),
        Err(error) => Err(format!("a content block {error}")),
    }
}

/// A member whose value is a string, as its literal.
pub(super) fn literal<'t>(value: Value<'_, 't>, key: &str) -> Option<&'t str> {
    value.get(key).filter(|text| text.as_text().is_some()).map(Value::raw)
}

/// The same, of a string that is not empty.
pub(super) fn name<'t>(value: Value<'_, 't>, key: &str) -> Option<&'t str> {
    value.get(key).filter(|text| text.as_text().is_some_and(|text| !text.is_empty())).map(Value::raw)
}

/// A value as the text of the arguments of a call: a string's content, or the JSON text of anything else.
pub(super) fn arguments(value: Value<'_, '_>) -> String {
    if value.as_text().is_some() { value.raw().to_owned() } else { quote(value.raw()) }
}

/// The blocks of a content: a plain string is one text. `read` maps the blocks of an array, or says why one is lost.
pub(super) fn content<'d, 't>(
    value: Value<'d, 't>,
    read: impl Fn(Value<'d, 't>) -> Result<String, String>,
) -> (Vec<String>, Vec<String>) {
    if value.as_text().is_some() {
        return (vec![text(value.raw())], Vec::new());
    }
    let (mut blocks, mut lost) = (Vec::new(), Vec::new());
    for item in value.items() {
        match read(item) {
            Ok(block) => blocks.push(block),
            Err(why) => lost.push(why),
        }
    }
    (blocks, lost)
}

/// A user message.
pub(super) fn user(id: &str, blocks: &[String], source: &str) -> String {
    let content = blocks.join(",");
    format!("{{\"id\":{id},\"role\":\"user\",\"content\":[{content}],\"source\":{source}}}")
}

/// The type that a block calls itself.
pub(super) fn kind(block: Value<'_, '_>) -> String {
    block.get("type").and_then(Value::to_text).unwrap_or_default()
}

/// A count of tokens.
pub(super) fn count(value: Option<Value<'_, '_>>) -> Option<u64> {
    value.and_then(Value::as_int53).and_then(|count| u64::try_from(count).ok())
}

/// Token counts as a log has them; `None` without the two that it needs.
pub(super) fn usage(
    (input, output): (Option<u64>, Option<u64>),
    (cache_read, cache_write): (Option<u64>, Option<u64>),
    reasoning: Option<u64>,
) -> Option<String> {
    let (input, output) = (input?, output?);
    let more = [("cacheReadTokens", cache_read), ("cacheWriteTokens", cache_write), ("reasoningTokens", reasoning)];
    let more: String = more.iter().filter_map(|(key, n)| n.map(|n| format!(",\"{key}\":{n}"))).collect();
    Some(format!("{{\"inputTokens\":{input},\"outputTokens\":{output}{more}}}"))
}
