//! The dispatcher in a world made of memory.

mod any_order;
mod bounds;
mod clocks;
mod costs;
mod fairness;
mod ladder;
mod races;
mod requests;
mod world;
