#!/usr/bin/env bash
# Creates a webhook over REST, has an example event sent to it, and lists what was sent. Needs curl and jq. `source .run/env`
# sets the first two variables for the local run.
#
#   examples/webhook.sh https://hooks.example.com/stellage [EVENT…]
#
# The secret is that in WEBHOOK_SECRET, as the receivers under examples/receivers/ have it; without one the service makes it.
set -euo pipefail
: "${STELLAGE_URL:?set it to the URL of the API, without /v1}"
: "${STELLAGE_API_KEY:?set it to an API key (stellage key create)}"
url=${1:?the HTTPS URL of the receiver}
shift
[ $# -gt 0 ] || set -- instance.created instance.started instance.stopped instance.deleted

# Prints the answer's body; on an error answer, its message, and ends.
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
[ -n "${WEBHOOK_SECRET:-}" ] || echo "$id: its secret, shown this once: $(jq -r .data.secret <<<"$webhook")" >&2

delivery=$(request POST "/v1/webhooks/$id/test")
delivery_id=$(jq -r .data.id <<<"$delivery")
echo "$id: $(jq -r .message <<<"$delivery")" >&2
# An attempt takes 30 seconds at most.
for _ in {1..35}; do
    delivery=$(request GET "/v1/webhooks/$id/deliveries/$delivery_id")
    [ "$(jq '.data.attempts | length' <<<"$delivery")" = 0 ] || break
    sleep 1
done

request GET "/v1/webhooks/$id/deliveries" |
    jq -r '.data[] | [.id, .event_type, .event_id, .status, (.attempts[-1]? // {} | .status_code // .error // "-")] | @tsv'
[ "$(jq -r .data.status <<<"$delivery")" = delivered ]
