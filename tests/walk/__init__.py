"""Every page of the documentation, walked: its commands run as they stand, in a sandbox."""
