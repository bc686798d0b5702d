#!/usr/bin/env bash
# Merge the shards of each tier (TIERS, SHARDS), review them beside data/base, and show the review as the step's summary.
set -euo pipefail
specmatrix=${SPECMATRIX:-.venv/bin/specmatrix}
whole=()
for tier in ${TIERS//,/ }; do
    shards=(shards/specmatrix-shard-"$tier"-*)
    out="out/whole/$tier"
    whole+=("$out")
    mkdir -p "$out"
    if [ "$SHARDS" = 1 ]; then
        cp -r "${shards[0]}/." "$out" || true
    else
        "$specmatrix" merge "${shards[@]}" --out "$out" || true
    fi
    # The review of a folder without a report is red, here and where it is rendered again; an empty one is not kept.
    [ -f "$out/report.jsonl" ] || echo "A shard of $tier was lost, see the log of this step." | tee "$out/lost.txt" >&2
done
mkdir -p data/base
status=0
# Of a pull request, whose merge commit has the base as its first parent.
git diff -U0 HEAD^1 HEAD > change.diff 2> /dev/null || true
"$specmatrix" review "${whole[@]}" --base data/base --out out/review --link "$LINK" --diff change.diff --annotate || status=$?
cat out/review/comment.md >> "${GITHUB_STEP_SUMMARY:-/dev/null}"
exit "$status"
