//! Rejections in a statement's own terms.
