//! What a store promises, wherever it is.

mod behaviour;
mod locks;
