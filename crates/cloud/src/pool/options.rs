//! Settings of a pool. Setters never fail; `check` runs before anything connects.

use std::num::NonZeroUsize;
use std::time::Duration;

use aqueduct_connector::{Error, Result};
use bytes::Bytes;

use super::call::CallSpec;

const MIB: u32 = 1 << 20;
/// HTTP/2's largest window.
const LARGEST_WINDOW: u32 = (1 << 31) - 1;
/// HTTP/2's initial window; smaller ones gain nothing.
const SMALLEST_WINDOW: u32 = 65_535;

/// Settings of a [`ChannelPool`](super::ChannelPool).
#[derive(Clone, Debug)]
pub struct PoolOptions {
    pub(super) channels: NonZeroUsize,
    pub(super) stream_window: u32,
    pub(super) connection_window: u32,
    pub(super) max_frame: u32,
    pub(super) max_header_list: u32,
    pub(super) connect_timeout: Duration,
    pub(super) keep_alive: Duration,
    pub(super) keep_alive_timeout: Duration,
    pub(super) warm_up: Option<WarmUp>,
}

/// A call that each new connection makes before it serves others; its answer is read and ignored, and if it fails or
/// runs out of its time the connection serves all the same.
#[derive(Clone, Debug)]
pub struct WarmUp {
    /// The call, with its routing header and time limit.
    pub spec: CallSpec,
    /// Its request, framed.
    pub body: Bytes,
}

impl Default for PoolOptions {
    fn default() -> Self {
        Self {
            channels: NonZeroUsize::MIN,
            stream_window: 4 * MIB,
            connection_window: 16 * MIB,
            max_frame: MIB / 4,
            max_header_list: 4 * MIB,
            connect_timeout: Duration::from_secs(10),
            keep_alive: Duration::from_secs(30),
            keep_alive_timeout: Duration::from_secs(20),
            warm_up: None,
        }
    }
}

impl PoolOptions {
    /// How many connections the pool may hold.
    ///
    /// - Default: 1.
    /// - A connection is opened when every open one is in use. More of them are the only remedy where the service's
    ///   window is small and the service far (measured), and each carries about 100 concurrent calls.
    #[must_use]
    pub fn channels(mut self, channels: NonZeroUsize) -> Self {
        self.channels = channels;
        self
    }

    /// How much unread answer data may wait in this process.
    ///
    /// - Unit: bytes; for one call, and for all calls of one connection.
    /// - Default: 4 MiB and 16 MiB.
    /// - Calls share the connection's window: below the sum of theirs, an unread answer holds up the others.
    ///
    /// # Errors
    ///
    /// Creating the pool fails outside 65,535 to 2^31 - 1, or if the connection's is below the call's.
    #[must_use]
    pub fn windows(mut self, stream_bytes: u32, connection_bytes: u32) -> Self {
        self.stream_window = stream_bytes;
        self.connection_window = connection_bytes;
        self
    }

    /// Windows out of one bound: at most `bytes` of unread answers over all channels, shared fairly by `streams`
    /// concurrent calls a channel, within what HTTP/2 allows. Set [`channels`](Self::channels) first.
    #[must_use]
    pub fn receive_bound(self, bytes: u64, streams: NonZeroUsize) -> Self {
        let clamp = |n: u64| {
            u32::try_from(n.min(u64::from(LARGEST_WINDOW)))
                .unwrap_or(LARGEST_WINDOW)
                .max(SMALLEST_WINDOW)
        };
        let connection = clamp(bytes / self.channels.get() as u64);
        let stream = clamp(u64::from(connection) / streams.get() as u64);
        self.windows(stream, connection)
    }

    /// The largest DATA frame the service may send. A message in one frame is handed over without a copy.
    ///
    /// - Unit: bytes.
    /// - Default: 256 KiB, above the usual message of 100 rows (large frames made a hand-written decoder 2.1 times faster).
    ///
    /// # Errors
    ///
    /// Creating the pool fails outside 16,384 to 2^24 - 1, the protocol's range.
    #[must_use]
    pub fn max_frame(mut self, bytes: u32) -> Self {
        self.max_frame = bytes;
        self
    }

    /// The most that headers or trailers of an answer may hold.
    ///
    /// - Unit: bytes, as HTTP/2 counts them.
    /// - Default: 4 MiB: large error details must not hide the status they belong to.
    /// - The number of frames is limited too, to 1.25 times what this many bytes need in frames of
    ///   [`max_frame`](Self::max_frame): a peer that sends frames of 16 KiB gets about 300 KiB through by default.
    #[must_use]
    pub fn max_header_list(mut self, bytes: u32) -> Self {
        self.max_header_list = bytes;
        self
    }

    /// How long resolving, connecting and the handshakes may take together. Default: 10 s.
    #[must_use]
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = limit;
        self
    }

    /// A connection with calls on it that has been silent for `interval` is pinged; without an answer within `timeout`
    /// it is given up. Defaults: 30 s and 20 s.
    ///
    /// # Errors
    ///
    /// Creating the pool fails below 30 s of interval: services close connections that ping more eagerly.
    #[must_use]
    pub fn keep_alive(mut self, interval: Duration, timeout: Duration) -> Self {
        self.keep_alive = interval;
        self.keep_alive_timeout = timeout;
        self
    }

    /// A call that new connections make before they serve. Default: none.
    #[must_use]
    pub fn warm_up(mut self, warm_up: WarmUp) -> Self {
        self.warm_up = Some(warm_up);
        self
    }

    pub(super) fn check(&self) -> Result<()> {
        let windows = SMALLEST_WINDOW..=LARGEST_WINDOW;
        if !windows.contains(&self.stream_window) || !windows.contains(&self.connection_window) {
            return Err(Error::config(
                "windows must be between 65535 and 2147483647 bytes",
            ));
        }
        if self.connection_window < self.stream_window {
            return Err(Error::config(
                "the window of a connection must not be below that of one call",
            ));
        }
        if !(16_384..1 << 24).contains(&self.max_frame) {
            return Err(Error::config(
                "max_frame must be between 16384 and 16777215 bytes",
            ));
        }
        if self.max_header_list < 16_384 {
            return Err(Error::config(
                "max_header_list must be at least 16384 bytes",
            ));
        }
        if self.connect_timeout.is_zero() || self.keep_alive_timeout.is_zero() {
            return Err(Error::config(
                "connect_timeout and the keep_alive timeout must be above zero",
            ));
        }
        if self.keep_alive < Duration::from_secs(30) {
            return Err(Error::config(
                "the keep_alive interval must be at least 30 s",
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_pass() {
        PoolOptions::default().check().expect("valid defaults");
    }

    #[test]
    fn each_wrong_setting_is_refused() {
        let options = PoolOptions::default;
        for (wrong, named) in [
            (options().windows(65_534, MIB), "windows"),
            (options().windows(MIB, 1 << 31), "windows"),
            (options().windows(2 * MIB, MIB), "window"),
            (options().max_frame(16_383), "max_frame"),
            (options().max_frame(1 << 24), "max_frame"),
            (options().max_header_list(1), "max_header_list"),
            (options().connect_timeout(Duration::ZERO), "connect_timeout"),
            (
                options().keep_alive(Duration::from_secs(29), Duration::from_secs(1)),
                "keep_alive",
            ),
        ] {
            let error = wrong.check().expect_err(named);
            assert!(error.to_string().contains(named), "{error}");
        }
    }

    #[test]
    fn a_receive_bound_is_kept_by_all_channels_together() {
        let four = NonZeroUsize::new(4).expect("four");
        let options = PoolOptions::default()
            .channels(four)
            .receive_bound(64 << 20, four);
        assert_eq!(
            (options.stream_window, options.connection_window),
            (4 * MIB, 16 * MIB)
        );
        let tiny = PoolOptions::default().receive_bound(1, four);
        tiny.check().expect("clamped to the protocol's range");
        PoolOptions::default()
            .receive_bound(u64::MAX, NonZeroUsize::MIN)
            .check()
            .expect("clamped");
    }
}
