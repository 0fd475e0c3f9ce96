"""The outside world: NIXL, S3, files, shared memory, metrics.

awscrt is here for its checksums alone. botocore would sign requests with it too, in memory that
Python can't see; it is told not to before it is imported.
"""

import os

os.environ.setdefault("BOTO_DISABLE_CRT", "true")
