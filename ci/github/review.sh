#!/usr/bin/env bash
# Merge the shards of each tier (TIERS, SHARDS), review them beside data/base, and show the review as the step's summary.
set -euo pipefail
specmatrix=${SPECMATRIX:-.venv/bin/specmatrix}
whole=()
for tier in ${TIERS//,/ }; do
    shards=(shards/specmatrix-shard-"$tier"-*)
    whole+=("out/whole/$tier")
    if [ "$SHARDS" = 1 ]; then
        mkdir -p out/whole && cp -r "${shards[0]}" "out/whole/$tier"
    else
        "$specmatrix" merge "${shards[@]}" --out "out/whole/$tier" || [ $? -eq 1 ]
    fi
done
mkdir -p data/base
status=0
# Of a pull request, whose merge commit has the base as its first parent.
git diff -U0 HEAD^1 HEAD > change.diff 2> /dev/null || true
"$specmatrix" review "${whole[@]}" --base data/base --out out/review --link "$LINK" --diff change.diff --annotate || status=$?
cat out/review/comment.md >> "${GITHUB_STEP_SUMMARY:-/dev/null}"
exit "$status"
