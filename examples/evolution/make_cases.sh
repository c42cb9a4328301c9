#!/bin/sh
# Write the cases of the guide on evolution into a folder: 6 to learn from, 20 to judge by.
set -eu
mkdir -p "$1"
for n in $(seq 1 26); do
    split=validation
    if [ "$n" -le 6 ]; then split=train; fi
    cat > "$1/sum-$n.toml" <<END
message = "How much is $n plus 40?"
split = "$split"

[[checks]]
kind = "answer"
equals = "$((n + 40))"
END
done
