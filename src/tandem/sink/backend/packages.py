# SPDX-License-Identifier: Apache-2.0
# Prints those of its arguments that are no packages here. A folder without code, as wandb/ is that W&B leaves behind, is none.
import importlib.util
import sys

sys.path = [path for path in sys.path if path]  # not the present folder
for name in sys.argv[1:]:
    found = importlib.util.find_spec(name)
    if found is None or found.origin is None:
        print(name)
