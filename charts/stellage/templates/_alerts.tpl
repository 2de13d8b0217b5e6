{{/*
The groups of the PrometheusRule: objectives, and alerts. Each alert has a section in docs/runbooks.md.
*/}}
{{- define "stellage.alerts" -}}
{{- $name := include "stellage.fullname" . }}
{{- with .Values.prometheusRule }}
{{- /* The metrics of this release. */}}
{{- $runbooks := .runbooks }}
{{- /* Deliveries that wait: a tenth of those that may. */}}
{{- $backlog := div (default 100000 $.Values.controller.settings.pendingDeliveriesInAll | int64) 10 }}
{{- $targets := default (dict "namespace" $.Release.Namespace "service" (printf "%s-metrics" $name)) .targetLabels }}
{{- $ours := list }}
{{- range $label, $value := $targets }}{{ $ours = append $ours (printf "%s=%q" $label $value) }}{{ end }}
{{- $ours = join "," $ours }}
{{- /* What happens to one or two accounts they may have brought about themselves, unless that is more than half of all. Each replica of the REST
API has the accounts that it answers. */}}
{{- $all := printf "max(stellage_objects{%s,kind=\"Account\"})" $ours }}
{{- $many := dict }}
{{- range $what := list "failed_requests" "slow_requests" "late_creates" "late_events" }}
{{- range $within := list "6h" "3d" }}
{{- $accounts := printf "(stellage_accounts_with_%s{%s,within=%q})" $what $ours $within }}
{{- $_ := set $many (printf "%s_%s" $what $within) (printf "(max%s > 2 or 2 * sum%s > %s)" $accounts $accounts $all) }}
{{- end }}
{{- end }}
{{- /* Shares of what did not go as it should, in percent of what there was, and how many of them are too few to wake anybody. */}}
{{- $writes := printf "stellage_http_requests_total{%s,method=~\"POST|PATCH|DELETE\"" $ours }}
{{- $created := printf "stellage_instance_create_duration_seconds_bucket{%s,le=~\"300(\\\\.0)?\"}" $ours }}
{{- $late := printf "stellage_instance_creates_late_total{%s}" $ours }}
{{- $receipts := printf "stellage_event_receipt_delay_seconds_bucket{%s,receiver=\"healthy\",le=" $ours }}
{{- $prompt := printf "%s~\"30(\\\\.0)?\"}" $receipts }}
{{- $objectives := list
  (dict "name" "Writes" "accounts" "failed_requests" "record" "writes_failed" "percent" .objectives.writes "floor" 10
    "what" "writing REST requests fail" "window" (printf "sum(rate(%s,status=~\"5..\"}[WINDOW])) / sum(rate(%s}[WINDOW]))" $writes $writes)
    "many" (printf "sum(increase(%s,status=~\"5..\"}[WINDOW]))" $writes))
  (dict "name" "Starts" "accounts" "late_creates" "record" "starts_late" "percent" .objectives.starts "floor" 2
    "what" "new servers do not run within five minutes" "window" (printf "sum(rate(%s[WINDOW])) / (sum(rate(%s[WINDOW])) + sum(rate(%s[WINDOW])))" $late $late $created)
    "many" (printf "sum(increase(%s[WINDOW]))" $late))
  (dict "name" "Events" "accounts" "late_events" "record" "events_late" "percent" .objectives.events "floor" 20
    "what" "events do not reach healthy receivers within 30 seconds" "window" (printf "1 - sum(rate(%s[WINDOW])) / sum(rate(%s\"+Inf\"}[WINDOW]))" $prompt $receipts)
    "many" (printf "sum(increase(%s\"+Inf\"}[WINDOW])) - sum(increase(%s[WINDOW]))" $receipts $prompt)) }}
groups:
  - name: stellage-objectives
    rules:
      {{- range $objective := $objectives }}
      {{- range $window := list "5m" "30m" "1h" "6h" "3d" }}
      - record: stellage:{{ $objective.record }}:ratio_rate{{ $window }}
        expr: {{ $objective.window | replace "WINDOW" $window | quote }}
        labels:
          {{- toYaml $targets | nindent 10 }}
      {{- end }}
      {{- $budget := divf (subf 100 $objective.percent) 100 }}
      {{- $record := printf "stellage:%s:ratio_rate" $objective.record }}
      {{- $over := dict }}
      {{- range $window, $factor := dict "5m" 14.4 "1h" 14.4 "30m" 6.0 "6h" 6.0 "3d" 1.0 }}
      {{- $_ := set $over $window (printf "%s%s{%s} > %.6g" $record $window $ours (mulf $factor $budget)) }}
      {{- end }}
      # At this rate a fiftieth of what may fail in 30 days does so within an hour, or a twentieth within six hours.
      - alert: Stellage{{ $objective.name }}BurnFast
        expr: {{ printf "((%s and %s) or (%s and %s)) and on () (%s > %d) and on () %s" (get $over "1h") (get $over "5m") (get $over "6h") (get $over "30m") ($objective.many | replace "WINDOW" "1h") $objective.floor (get $many (printf "%s_6h" $objective.accounts)) | quote }}
        for: 2m
        labels: {severity: critical}
        annotations:
          runbook_url: {{ $runbooks }}#stellage{{ lower $objective.name }}burnfast
          summary: Too many {{ $objective.what }}
          description: At this rate the objective of {{ $objective.percent }} % will be missed within days.
      - alert: Stellage{{ $objective.name }}BurnSlow
        expr: {{ printf "%s and %s6h{%s} > %.6g and on () (%s > %d) and on () %s" (get $over "3d") $record $ours $budget ($objective.many | replace "WINDOW" "3d") $objective.floor (get $many (printf "%s_3d" $objective.accounts)) | quote }}
        for: 1h
        labels: {severity: warning}
        annotations:
          runbook_url: {{ $runbooks }}#stellage{{ lower $objective.name }}burnslow
          summary: More {{ $objective.what }} than should
          description: For three days it has been more than the objective of {{ $objective.percent }} % allows.
      {{- end }}
  - name: stellage
    rules:
      - alert: StellageNobodyLeads
        expr: {{ printf "sum(stellage_leader{%s}) == 0 or absent(stellage_leader{%s})" $ours $ours | quote }}
        for: 2m
        labels: {severity: critical}
        annotations:
          runbook_url: {{ $runbooks }}#stellagenobodyleads
          summary: No replica of the controllers holds the Lease
          description: Instances do not change and nothing is delivered. See the logs of the controllers, and whether they reach the API server.
      - alert: StellageApiDown
        expr: {{ printf "sum(stellage_api_ready{%s}) == 0 or absent(stellage_api_ready{%s})" $ours $ours | quote }}
        for: 2m
        labels: {severity: critical}
        annotations:
          runbook_url: {{ $runbooks }}#stellageapidown
          summary: No replica of the REST API is ready
          description: Customers are not answered. /readyz of each replica says what it waits for, if there is one.
      - alert: StellageApiErrors
        expr: {{ printf "sum(rate(stellage_http_requests_total{%s,status=~\"5..\"}[5m])) > 0.05 * sum(rate(stellage_http_requests_total{%s}[5m])) and sum(increase(stellage_http_requests_total{%s,status=~\"5..\"}[5m])) > 10 and %s" $ours $ours $ours $many.failed_requests_6h | quote }}
        for: 5m
        labels: {severity: critical}
        annotations:
          runbook_url: {{ $runbooks }}#stellageapierrors
          summary: More than 5 % of REST requests fail
          description: With 503 the API server does not answer in time; everything else is in the logs, with the id of the request.
      - alert: StellageApiSlow
        expr: {{ printf "histogram_quantile(0.99, sum by (le) (rate(stellage_http_request_duration_seconds_bucket{%s}[5m]))) > 2 and sum(increase(stellage_http_request_duration_seconds_bucket{%s,le=\"+Inf\"}[5m])) - sum(increase(stellage_http_request_duration_seconds_bucket{%s,le=~\"2\\\\.38.*\"}[5m])) > 10 and %s" $ours $ours $ours $many.slow_requests_6h | quote }}
        for: 10m
        labels: {severity: warning}
        annotations:
          runbook_url: {{ $runbooks }}#stellageapislow
          summary: One REST request in a hundred takes longer than two seconds
          description: Reads come from memory, so the API server is slow to write, or the replicas lack CPU.
      - alert: StellageKubernetesFails
        expr: {{ printf "sum(rate(stellage_kubernetes_requests_total{%s,status=~\"0|429|5..\"}[5m])) > 0.05 * sum(rate(stellage_kubernetes_requests_total{%s}[5m]))" $ours $ours | quote }}
        for: 5m
        labels: {severity: critical}
        annotations:
          runbook_url: {{ $runbooks }}#stellagekubernetesfails
          summary: More than 5 % of the requests to the API server of Kubernetes get no answer or an error
          description: It is down, overloaded (429, 5xx), or cannot be reached (0). Changes wait until it is back.
      - alert: StellageKubernetesSlow
        expr: {{ printf "histogram_quantile(0.99, sum by (le, method) (rate(stellage_kubernetes_request_duration_seconds_bucket{%s}[5m]))) > 2" $ours | quote }}
        for: 10m
        labels: {severity: warning}
        annotations:
          runbook_url: {{ $runbooks }}#stellagekubernetesslow
          summary: {{ "One in a hundred {{ $labels.method }} requests to the API server of Kubernetes takes longer than two seconds" | quote }}
          description: Everything that changes is slow then. See the metrics of the API server and of etcd.
      - alert: StellageReconcilesFail
        expr: {{ printf "sum by (kind) (rate(stellage_reconciles_total{%s,outcome!=\"ok\"}[10m])) > 0.2 * sum by (kind) (rate(stellage_reconciles_total{%s}[10m])) and sum by (kind) (increase(stellage_reconciles_total{%s,outcome!=\"ok\"}[10m])) > 20" $ours $ours $ours | quote }}
        for: 15m
        labels: {severity: warning}
        annotations:
          runbook_url: {{ $runbooks }}#stellagereconcilesfail
          summary: {{ "More than a fifth of the reconciles of {{ $labels.kind }} fail" | quote }}
          description: The outcome of stellage_reconciles_total says why; so do the conditions of the objects.
      - alert: StellageReconcileBacklog
        expr: {{ printf "sum by (kind) (stellage_reconcile_queue_depth{%s}) > 1000" $ours | quote }}
        for: 15m
        labels: {severity: warning}
        annotations:
          runbook_url: {{ $runbooks }}#stellagereconcilebacklog
          summary: {{ "More than 1,000 {{ $labels.kind }} wait for the controllers" | quote }}
          description: The provider or the API server is too slow for what changes, or `concurrency` is too low.
      - alert: StellageProviderFails
        expr: {{ printf "sum by (provider) (rate(stellage_provider_calls_total{%s,outcome!=\"ok\"}[10m])) > 0.1 * sum by (provider) (rate(stellage_provider_calls_total{%s}[10m])) and sum by (provider) (increase(stellage_provider_calls_total{%s,outcome!=\"ok\"}[10m])) > 10 and on () (sum(stellage_accounts_with_provider_failures{%s}) > 2 or 2 * sum(stellage_accounts_with_provider_failures{%s}) > max(stellage_objects{%s,kind=\"Account\"}))" $ours $ours $ours $ours $ours $ours | quote }}
        for: 10m
        labels: {severity: critical}
        annotations:
          runbook_url: {{ $runbooks }}#stellageproviderfails
          summary: {{ "More than a tenth of the calls of the provider {{ $labels.provider }} fail, for several accounts" | quote }}
          description: Calls are retried, and the conditions of the instances say why they fail.
      - alert: StellageRegionUnreachable
        expr: {{ printf "min by (region) (stellage_region_up{%s}) == 0" $ours | quote }}
        for: 5m
        labels: {severity: critical}
        annotations:
          runbook_url: {{ $runbooks }}#stellageregionunreachable
          summary: {{ "The cluster of the region {{ $labels.region }} cannot be reached" | quote }}
          description: Its servers go on, but nothing that is requested for them is done. Other regions are not affected.
      - alert: StellageOperationsOverdue
        expr: {{ printf "max by (region) (stellage_operations_overdue{%s}) > 0" $ours | quote }}
        for: 10m
        labels: {severity: warning}
        annotations:
          runbook_url: {{ $runbooks }}#stellageoperationsoverdue
          summary: {{ "Operations of servers in the region {{ $labels.region }} do not end" | quote }}
          description: They go on, and the conditions of the instances say what they wait for.
      - alert: StellageLostStarts
        expr: {{ printf "sum by (region) (increase(stellage_kubevirt_lost_starts_total{%s}[1h])) > 3" $ours | quote }}
        labels: {severity: warning}
        annotations:
          runbook_url: {{ $runbooks }}#stellageloststarts
          summary: {{ "KubeVirt loses starts of servers in the region {{ $labels.region }}" | quote }}
          description: Stellage repeats them after seconds. Something refuses what KubeVirt creates, such as an admission webhook that fails.
      - alert: StellageOrphanServers
        expr: {{ printf "max by (region) (stellage_orphan_servers{%s}) > 0" $ours | quote }}
        for: 15m
        labels: {severity: warning}
        annotations:
          runbook_url: {{ $runbooks }}#stellageorphanservers
          summary: {{ "Servers in the region {{ $labels.region }} belong to no instance" | quote }}
          description: They take up room and addresses, and nobody pays for them. `stellage orphans` lists them.
      - alert: StellageDeliveriesDropped
        expr: {{ printf "sum(increase(stellage_deliveries_dropped_total{%s,limit=\"all\"}[15m])) > 0" $ours | quote }}
        labels: {severity: warning}
        annotations:
          runbook_url: {{ $runbooks }}#stellagedeliveriesdropped
          summary: Deliveries have been dropped, because there were too many of all accounts
          description: The condition Backlog tells which webhooks are concerned; their events are lost for them.
      - alert: StellageDeliveryBacklog
        expr: {{ printf "sum(stellage_deliveries_pending{%s}) > %d" $ours $backlog | quote }}
        for: 30m
        labels: {severity: warning}
        annotations:
          runbook_url: {{ $runbooks }}#stellagedeliverybacklog
          summary: More than {{ $backlog }} deliveries wait for an attempt
          description: Many receivers are down, or the network of the controllers is. See stellage_delivery_attempts_total by outcome.
      - alert: StellageWebhooksDisabled
        expr: {{ printf "sum(stellage_accounts_with_disabled_webhooks{%s}) - sum(stellage_accounts_with_disabled_webhooks{%s} offset 1h) > 5" $ours $ours | quote }}
        # An hour after another replica began to lead, which had not counted them at once.
        for: 5m
        labels: {severity: warning}
        annotations:
          runbook_url: {{ $runbooks }}#stellagewebhooksdisabled
          summary: Webhooks of more than five accounts were disabled within an hour
          description: One receiver that fails is its owner's business; many at once point at the network of the controllers.
      # A counter with this outcome begins at one, which `increase` does not see.
      - alert: StellageEventsNotLogged
        expr: {{ printf "sum (increase(stellage_event_log_writes_total{%s,outcome!=\"stored\"}[15m]) > 0 or (stellage_event_log_writes_total{%s,outcome!=\"stored\"} unless stellage_event_log_writes_total{%s} offset 15m)) > 0" $ours $ours $ours | quote }}
        for: 15m
        labels: {severity: warning}
        annotations:
          runbook_url: {{ $runbooks }}#stellageeventsnotlogged
          summary: Pages of the event log cannot be written
          description: The events are delivered, but /v1/events may lack them. See the logs of the leader.
      - alert: StellageMailFails
        expr: {{ printf "sum by (outcome) (increase(stellage_mails_total{%s,outcome!~\"ok|recipient\"}[1h]) > 0 or (stellage_mails_total{%s,outcome!~\"ok|recipient\"} unless stellage_mails_total{%s} offset 1h)) > 0 unless on () sum(increase(stellage_mails_total{%s,outcome=\"ok\"}[1h])) > 0" $ours $ours $ours $ours | quote }}
        for: 30m
        labels: {severity: warning}
        annotations:
          runbook_url: {{ $runbooks }}#stellagemailfails
          summary: {{ "Account holders are not told about their webhooks: {{ $labels.outcome }}" | quote }}
          description: With not_configured there is no mail server at all; otherwise the status of the webhook has the error.
      - alert: StellageWatchStalled
        expr: {{ printf "time() - min by (pod, resource) (stellage_watch_last_response_timestamp_seconds{%s}) > 600" $ours | quote }}
        for: 5m
        labels: {severity: critical}
        annotations:
          runbook_url: {{ $runbooks }}#stellagewatchstalled
          summary: {{ "{{ $labels.pod }} has had no answer to its watch of {{ $labels.resource }} for ten minutes" | quote }}
          description: What it has in memory is outdated. A watch is renewed every 200 seconds, so the process or its connection is stuck.
      - alert: StellageWatchesFail
        expr: {{ printf "sum by (kind) (rate(stellage_watch_errors_total{%s}[10m])) > 0.05" $ours | quote }}
        for: 10m
        labels: {severity: warning}
        annotations:
          runbook_url: {{ $runbooks }}#stellagewatchesfail
          summary: {{ "Watches of {{ $labels.kind }} keep failing" | quote }}
          description: What is in memory may be outdated. See whether the CRDs and the rights are there, and whether the API server answers.
      # Those of the first list are counted before anything is scraped.
      - alert: StellageInvalidObjects
        expr: {{ printf "sum by (kind) (increase(stellage_invalid_objects_total{%s}[15m]) > 0 or (stellage_invalid_objects_total{%s} unless stellage_invalid_objects_total{%s} offset 15m)) > 0" $ours $ours $ours | quote }}
        labels: {severity: warning}
        annotations:
          runbook_url: {{ $runbooks }}#stellageinvalidobjects
          summary: {{ "Objects of the kind {{ $labels.kind }} do not match their schema, and are ignored" | quote }}
          description: The logs name them. Perhaps the CRDs are older than the program.
      - alert: StellageCatalogueInvalid
        expr: {{ printf "sum (increase(stellage_catalogue_reloads_total{%s,outcome=\"invalid\"}[15m]) > 0 or (stellage_catalogue_reloads_total{%s,outcome=\"invalid\"} unless stellage_catalogue_reloads_total{%s} offset 15m)) > 0" $ours $ours $ours | quote }}
        labels: {severity: warning}
        annotations:
          runbook_url: {{ $runbooks }}#stellagecatalogueinvalid
          summary: The changed catalogue has a mistake, and the last good one stays in use
          description: The logs, and an Event in the namespace of the operator, name the field.
      - alert: StellageAddressesRunOut
        expr: {{ printf "min by (region, family) (stellage_addresses_free{%s} / (stellage_addresses_free{%s} + stellage_addresses_used{%s})) < 0.1" $ours $ours $ours | quote }}
        for: 5m
        labels: {severity: warning}
        annotations:
          runbook_url: {{ $runbooks }}#stellageaddressesrunout
          summary: {{ "Fewer than a tenth of the {{ $labels.family }} addresses of region {{ $labels.region }} are free" | quote }}
          description: Once there are none, new instances fail with the reason NoFreeAddress until others are deleted.
      - alert: StellageAccountsNotReady
        expr: {{ printf "max(stellage_accounts_not_ready{%s}) > 0" $ours | quote }}
        for: 15m
        labels: {severity: warning}
        annotations:
          runbook_url: {{ $runbooks }}#stellageaccountsnotready
          summary: Accounts are not ready
          description: Their account holders can create nothing. The condition Ready says why.
      - alert: StellageBackupsFail
        expr: {{ printf "sum(increase(stellage_backups_total{%s,outcome=\"failed\"}[6h])) > 0.1 * sum(increase(stellage_backups_total{%s,outcome=~\"completed|failed\"}[6h])) and sum(increase(stellage_backups_total{%s,outcome=\"failed\"}[6h])) > 3 and (max(stellage_accounts_with_failed_backups{%s}) > 2 or 2 * max(stellage_accounts_with_failed_backups{%s}) > %s)" $ours $ours $ours $ours $ours $all | quote }}
        for: 15m
        labels: {severity: warning}
        annotations:
          runbook_url: {{ $runbooks }}#stellagebackupsfail
          summary: More than a tenth of the backups fail, for several accounts
          description: The status of each has the error. stellage_backup_last_completed_timestamp_seconds tells when the last one was completed.
      {{- if $.Values.backup.enabled }}
      - alert: StellageInstallationBackupOld
        expr: {{ printf "max(stellage_installation_backup_age_seconds{%s}) > %d or absent(stellage_installation_backup_age_seconds{%s})" $ours (mul (int $.Values.backup.maxAgeHours) 3600) $ours | quote }}
        for: 15m
        labels: {severity: critical}
        annotations:
          runbook_url: {{ $runbooks }}#stellageinstallationbackupold
          summary: There is no good backup of the installation that is younger than {{ $.Values.backup.maxAgeHours }} hours
          description: What happens from now on would be lost with the cluster. The logs of the last Jobs say why.
      {{- end }}
      - alert: StellageInvoicesOverdue
        expr: {{ printf "max(stellage_invoices_overdue{%s}) > 0" $ours | quote }}
        for: 15m
        labels: {severity: warning}
        annotations:
          runbook_url: {{ $runbooks }}#stellageinvoicesoverdue
          summary: Invoices have not been issued an hour after the end of their month
          description: The status of each says what it waits for; often there is no seller in the catalogue.
      - alert: StellageCertificateExpires
        expr: {{ printf "min by (pod) (stellage_certificate_expiry_timestamp_seconds{%s}) - time() < 7 * 86400" $ours | quote }}
        for: 1h
        labels: {severity: warning}
        annotations:
          runbook_url: {{ $runbooks }}#stellagecertificateexpires
          summary: {{ "The certificate that {{ $labels.pod }} serves ends within a week" | quote }}
          description: It is read again when its Secret changes, so nobody has renewed it.
      - alert: StellageLeaderChanges
        expr: {{ printf "max(stellage_lease_transitions{%s}) - max(stellage_lease_transitions{%s} offset 1h) > 4" $ours $ours | quote }}
        labels: {severity: warning}
        annotations:
          runbook_url: {{ $runbooks }}#stellageleaderchanges
          summary: The leader has changed more than four times within an hour
          description: Each time, operations wait until the next leader has begun. The API server may be too slow to renew the Lease.
      - alert: StellageEtcdLarge
        expr: {{ printf "max(apiserver_storage_size_bytes) > %d" (div (mul (.etcdQuotaMebibytes | int64) 1048576 4) 5) | quote }}
        for: 15m
        labels: {severity: warning}
        annotations:
          runbook_url: {{ $runbooks }}#stellageetcdlarge
          summary: More than four fifths of what etcd may store are used
          description: Once it is full, nothing can be written any more.
{{- end }}
{{- end }}
