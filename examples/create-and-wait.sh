#!/usr/bin/env bash
# Creates an instance over REST and waits until it is running, polling every 5 seconds. Needs curl and jq. For the local run,
# `source .run/env` sets STELLAGE_URL and STELLAGE_API_KEY.
#
#   examples/create-and-wait.sh [NAME [PLAN [REGION [IMAGE]]]]
set -euo pipefail
: "${STELLAGE_URL:?set it to the URL of the API, without /v1}"
: "${STELLAGE_API_KEY:?set it to an API key (stellage key create)}"

# A create that takes longer has failed, which its status says.
give_up_after=1200
# With a key, a request that is sent again creates no second instance.
key=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
headers=$(mktemp)
trap 'rm -f "$headers"' EXIT

# Prints the body of the response, or the error message, in which case the script ends. What is refused for now (429, 503) is sent
# again when the response says, and what was lost on the way (no answer, 502, 504) as well.
request() {
    local method=$1 path=$2 body=${3:-} answer status wait
    while :; do
        answer=$(curl --silent --show-error --request "$method" --write-out '\n%{http_code}' --dump-header "$headers" \
            --header "Authorization: Bearer $STELLAGE_API_KEY" ${body:+--header "Idempotency-Key: $key"} \
            ${body:+--header 'Content-Type: application/json' --data "$body"} "$STELLAGE_URL$path") || answer=$'\n'000
        status=${answer##*$'\n'} answer=${answer%$'\n'*}
        case $status in
            000 | 429 | 502 | 503 | 504)
                wait=$(sed -n 's/^retry-after: *\([0-9][0-9]*\).*/\1/Ip' "$headers")
                [ "$SECONDS" -lt "$give_up_after" ] || break
                sleep "${wait:-5}"
                ;;
            *) break ;;
        esac
    done
    if [ "$status" -eq 000 ]; then
        echo "$STELLAGE_URL does not answer" >&2
        return 1
    fi
    if [ "$status" -ge 400 ]; then
        jq -r '"\(.error.code): \(.error.message)", (.error.details[]? | "  \(.field) \(.message)")' <<<"$answer" >&2
        return 1
    fi
    printf '%s\n' "$answer"
}

body=$(jq -n --arg name "${1:-web}" --arg plan "${2:-starter}" --arg region "${3:-fr-par-1}" --arg image "${4:-debian-13}" \
    '{name: $name, plan: $plan, region: $region, image: $image}')
created=$(request POST /v1/instances "$body")
id=$(jq -r .data.id <<<"$created")
echo "$id: $(jq -r .message <<<"$created")" >&2

while :; do
    instance=$(request GET "/v1/instances/$id")
    status=$(jq -r .data.status <<<"$instance")
    echo "$id: $status" >&2
    case $status in
        running) break ;;
        error)
            echo "$id could not be created: $(jq -r '.data | .status_message // .status_reason' <<<"$instance")" >&2
            exit 1
            ;;
    esac
    if [ "$SECONDS" -ge "$give_up_after" ]; then
        echo "$id is still $status after $((give_up_after / 60)) minutes: $(jq -r '.data | .status_message // .status_reason' <<<"$instance")" >&2
        exit 1
    fi
    sleep 5
done
jq .data <<<"$instance"
