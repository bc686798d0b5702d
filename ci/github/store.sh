#!/usr/bin/env bash
# Put reports of the main branch on the branch specmatrix-data: base/TIER-STAGE.jsonl.gz and the history.
set -euo pipefail
specmatrix=${SPECMATRIX:-.venv/bin/specmatrix}
remote=${REMOTE:-$SERVER/$REPOSITORY}
# The token is in the environment of git alone, not in a file of the checkout.
export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0="http.$SERVER/.extraheader"
GIT_CONFIG_VALUE_0="AUTHORIZATION: basic $(printf 'x-access-token:%s' "$GITHUB_TOKEN" | base64 --wrap=0)"
export GIT_CONFIG_VALUE_0
git clone --quiet --depth 1 --branch specmatrix-data "$remote" data || git init --quiet data
mkdir -p data/base data/history
for report in "$@"; do
    [ -f "$report/report.jsonl" ] || continue
    "$specmatrix" history add "$report" --history data/history --base data/base
done
cd data
git add --all
# A job that runs again has nothing new.
git diff --cached --quiet && exit 0
git -c user.name=specmatrix -c user.email=specmatrix@localhost commit --quiet --message "Reports of $(basename "$1")"
git push --quiet "$remote" HEAD:specmatrix-data
