#!/usr/bin/env bash
# Creates a webhook over REST, sends a test event to it, and lists its deliveries. Needs curl and jq. For the local run,
# `source .run/env` sets STELLAGE_URL and STELLAGE_API_KEY.
#
#   examples/webhook.sh https://hooks.example.com/stellage [EVENT…]
#
# WEBHOOK_SECRET is the webhook's secret, as for the receivers in examples/receivers/; without it the service generates one.
set -euo pipefail
: "${STELLAGE_URL:?set it to the URL of the API, without /v1}"
: "${STELLAGE_API_KEY:?set it to an API key (stellage key create)}"
url=${1:?the HTTPS URL of the receiver}
shift
[ $# -gt 0 ] || set -- instance.created instance.started instance.stopped instance.deleted

# Prints the body of the response, or the error message, in which case the script ends.
request() {
    local method=$1 path=$2 body=${3:-} answer status
    answer=$(curl --silent --show-error --request "$method" --write-out '\n%{http_code}' \
        --header "Authorization: Bearer $STELLAGE_API_KEY" --header 'Content-Type: application/json' \
        ${body:+--data "$body"} "$STELLAGE_URL$path")
    status=${answer##*$'\n'} answer=${answer%$'\n'*}
    if [ "$status" -ge 400 ]; then
        jq -r '"\(.error.code): \(.error.message)", (.error.details[]? | "  \(.field) \(.message)")' <<<"$answer" >&2
        return 1
    fi
    printf '%s\n' "$answer"
}

body=$(jq -n --arg url "$url" '{url: $url, events: $ARGS.positional} + if env.WEBHOOK_SECRET then {secret: env.WEBHOOK_SECRET} else {} end' \
    --args "$@")
webhook=$(request POST /v1/webhooks "$body")
id=$(jq -r .data.id <<<"$webhook")
echo "$id: $url" >&2
# Such as that another webhook sends the same events to this URL.
jq -r --arg id "$id" '.message // empty | "\($id): \(.)"' <<<"$webhook" >&2
[ -n "${WEBHOOK_SECRET:-}" ] || echo "$id: its secret, shown only this once: $(jq -r .data.secret <<<"$webhook")" >&2

delivery=$(request POST "/v1/webhooks/$id/test")
delivery_id=$(jq -r .data.id <<<"$delivery")
echo "$id: $(jq -r .message <<<"$delivery")" >&2
# An attempt takes at most 30 seconds.
for _ in {1..35}; do
    delivery=$(request GET "/v1/webhooks/$id/deliveries/$delivery_id")
    [ "$(jq '.data.attempts | length' <<<"$delivery")" = 0 ] || break
    sleep 1
done

request GET "/v1/webhooks/$id/deliveries" |
    jq -r '.data[] | [.id, .event_type, .event_id, .status, (.attempts[-1]? // {} | .status_code // .error // "-")] | @tsv'
[ "$(jq -r .data.status <<<"$delivery")" = delivered ]
