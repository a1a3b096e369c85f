//! File sources (JSON lines and CSV, plain or gzip) and the rate-limited generator.
