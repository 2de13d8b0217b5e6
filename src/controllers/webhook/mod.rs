//! The Webhook controller.
/// Handle.
#[derive(Clone, Default)]
pub struct Outbox;
impl Outbox {
    /// x
    pub fn is_settled(&self, _: &str) -> bool {
        true
    }
    /// x
    pub fn recorded(&self, _: &crate::resources::Instance) {}
}
