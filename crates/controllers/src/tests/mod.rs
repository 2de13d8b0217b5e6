//! The controllers together, with an in-memory API server and a clock of their own.
//!
//! - `year`: what happens in a simulated year;
//! - `late`: a provider that takes its time to answer;
//! - `regions`: what a region does not offer, and instances whose region is missing;
//! - `resting`: an account whose books are not in memory;
//! - `operator`: one process of the operator, with a clock that jumps to the next moment at which there is something to do;
//! - `api_server`: an in-memory API server, which fails at times, and at whose writes a process can be killed;
//! - `chronicle`: what must follow from what happened.

mod api_server;
mod chronicle;
mod late;
mod operator;
mod regions;
mod resting;
mod year;

use domain::catalogue::Catalogue;

/// The built-in catalogue, with a seller, so that invoices are issued.
fn with_seller() -> Catalogue {
    let mut catalogue = Catalogue::default();
    "Stellage Ltd".clone_into(&mut catalogue.invoices.seller.name);
    catalogue
}
