//! (chapter to be written)
