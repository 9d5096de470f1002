"""Registration, verification, promotion and use of versions."""
