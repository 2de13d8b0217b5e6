//! Events as pages show them.

use crate::console::page::Shown;

/// An event, as receivers get it.
pub type Event = Shown<api::Event>;

impl Event {
    fn text(&self, pointer: &str) -> Option<&str> {
        self.data.pointer(pointer)?.as_str()
    }

    /// The instance that it is about.
    pub fn instance_id(&self) -> Option<&str> {
        self.text("/instance/id")
            .or_else(|| self.text("/backup/instance_id"))
    }

    /// The name of the object that it is about.
    pub fn subject(&self) -> &str {
        let names = ["/instance/name", "/backup/instance_name", "/invoice/id"];
        names.into_iter().find_map(|name| self.text(name)).unwrap_or("–")
    }
}
