{{/*
Refuses what the schema cannot, or only without saying why: values that do not go together. What `api.extraEnv` names counts as set.
*/}}
{{- define "stellage.checks" -}}
{{- if regexMatch "/v1/traces/*$" (default "" .Values.settings.otlpEndpoint) }}
{{- fail (printf "settings.otlpEndpoint (%s) must be without /v1/traces, which the program adds" .Values.settings.otlpEndpoint) }}
{{- end }}
{{- with .Values.serviceAccounts }}
{{- if and (eq $.Values.mode "split") .api (eq .api .controller) }}
{{- fail (printf "serviceAccounts.api and serviceAccounts.controller are both %s, which gives the REST API the rights of the controllers: name two, or set mode to all" .api) }}
{{- end }}
{{- end }}
{{- if and .Values.serviceMonitor.enabled .Values.podMonitor.enabled }}
{{- fail "serviceMonitor.enabled and podMonitor.enabled would scrape each pod twice: choose one" }}
{{- end }}
{{- with .Values.api.autoscaling }}
{{- if and .enabled (gt (int .minReplicas) (int .maxReplicas)) }}
{{- fail (printf "api.autoscaling.minReplicas (%d) must be at most api.autoscaling.maxReplicas (%d)" (int .minReplicas) (int .maxReplicas)) }}
{{- end }}
{{- end }}
{{- if .Values.catalogue }}
{{- $listed := dict }}
{{- range .Values.catalogue.regions }}
{{- if not (kindIs "map" .) }}
{{- $_ := set $listed . "" }}
{{- else }}
{{- $path := dig "kubevirt" "kubeconfig" "" . }}
{{- $_ := set $listed .code $path }}
{{- if and (hasPrefix "/etc/stellage/regions/" $path) (not (hasKey $.Values.regions (base (dir $path)))) }}
{{- fail (printf "the catalogue names %s for the region %s, and regions.%s.secretName is not set" $path .code (base (dir $path))) }}
{{- end }}
{{- $code := .code }}
{{- range $path := values (pick (dig "kubevirt" "prometheus" dict .) "bearerTokenFile" "ca") }}
{{- if and (hasPrefix "/etc/stellage/prometheus/" $path) (not (dig (base (dir $path)) "prometheusSecretName" "" $.Values.regions)) }}
{{- fail (printf "the catalogue names %s for the region %s, and regions.%s.prometheusSecretName is not set" $path $code (base (dir $path))) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- /* A region that is being taken out leaves the catalogue first: a process that started without it would check nothing. */}}
{{- range $code, $_ := .Values.regions }}
{{- if and (hasKey $listed $code) (not (hasPrefix (printf "/etc/stellage/regions/%s/" $code) (get $listed $code))) }}
{{- fail (printf "regions.%s: kubevirt.kubeconfig of the region %s in the catalogue must be /etc/stellage/regions/%s/kubeconfig" $code $code $code) }}
{{- end }}
{{- end }}
{{- end }}
{{- if .Values.consoleGateway.enabled }}
{{- if not (or .Values.api.settings.publicUrl .Values.api.settings.consoleGatewayUrl) }}
{{- fail "consoleGateway.enabled also needs api.settings.publicUrl, below which clients reach the gateway, or api.settings.consoleGatewayUrl" }}
{{- end }}
{{- range $code, $region := .Values.regions }}
{{- if not $region.consoleSecretName }}
{{- fail (printf "consoleGateway.enabled also needs regions.%s.consoleSecretName, a Secret like regions.%s.secretName for the service account of the consoles" $code $code) }}
{{- end }}
{{- end }}
{{- end }}
{{- with .Values.backup }}
{{- if .enabled }}
{{- if not .target }}
{{- fail "backup.enabled also needs backup.target: s3://BUCKET/PREFIX, or /backups with backup.existingClaim" }}
{{- end }}
{{- if ne (eq .target "/backups") (not (empty .existingClaim)) }}
{{- fail "backup.existingClaim goes with the target /backups, and with no other" }}
{{- end }}
{{- if eq .unencrypted (not (empty .encryption.existingSecret)) }}
{{- fail "backup.enabled also needs backup.encryption.existingSecret, a Secret with keys of age; or, in its place, backup.unencrypted" }}
{{- end }}
{{- end }}
{{- end }}
{{- with .Values.prometheusRule }}
{{- if and .enabled (not .targetLabels) (not $.Values.serviceMonitor.enabled) (not (default dict $.Values.podMonitor).enabled) }}
{{- fail "prometheusRule.enabled also needs serviceMonitor.enabled, or prometheusRule.targetLabels, the labels that Prometheus gives to Stellage's targets: otherwise no alert could ever fire" }}
{{- end }}
{{- end }}
{{- $variables := list }}
{{- range .Values.api.extraEnv }}
{{- $variables = append $variables .name }}
{{- end }}
{{- $settings := .Values.api.settings }}
{{- $needed := dict
  "api.settings.oidcIssuer" (or $settings.oidcIssuer (has "STELLAGE_OIDC_ISSUER" $variables))
  "api.settings.oidcClientId" (or $settings.oidcClientId (has "STELLAGE_OIDC_CLIENT_ID" $variables))
  "oidc.existingSecret" (or .Values.oidc.existingSecret (has "STELLAGE_OIDC_CLIENT_SECRET_FILE" $variables)) }}
{{- $given := list }}
{{- range $name, $value := merge (dict "api.settings.oidcName" $settings.oidcName) $needed }}
{{- if $value }}{{ $given = append $given $name }}{{ end }}
{{- end }}
{{- if $given }}
{{- $missing := list }}
{{- range $name, $value := merge (dict "api.settings.publicUrl" (or $settings.publicUrl (has "STELLAGE_PUBLIC_URL" $variables))) $needed }}
{{- if not $value }}{{ $missing = append $missing $name }}{{ end }}
{{- end }}
{{- if $missing }}
{{- fail (printf "signing in through OpenID Connect also needs %s: %s alone is refused by the program" (join ", " $missing) (join ", " $given)) }}
{{- end }}
{{- end }}
{{- end -}}
