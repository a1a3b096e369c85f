//! The simulation, seen by an independent client: the generated stubs over a tonic channel.

mod admin;
mod faults;
mod manners;
mod pubsub;
mod reading;
mod support;
mod transport;
