//! What every Google Cloud service needs: credentials, channels, status chains, retry.
