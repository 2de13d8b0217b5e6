//! What every type of event looks like: an example and a JSON Schema.
