{{/* The name of the release's objects. */}}
{{- define "stellage.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* What the pods are selected by. */}}
{{- define "stellage.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{/* The labels of every object. `stellage doctor` finds pods and service accounts by part-of, whatever their names. */}}
{{- define "stellage.labels" -}}
{{- with .Values.commonLabels }}
{{- toYaml . }}
{{ end -}}
{{ include "stellage.selector" . }}
app.kubernetes.io/part-of: stellage
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* The component whose pods serve the REST API, and the one that runs the controllers. */}}
{{- define "stellage.api.component" -}}{{ eq .Values.mode "all" | ternary "all" "api" }}{{- end -}}
{{- define "stellage.controller.component" -}}{{ eq .Values.mode "all" | ternary "all" "controller" }}{{- end -}}

{{/* Whether the number of replicas of the REST API is left to a HorizontalPodAutoscaler. */}}
{{- define "stellage.api.autoscales" -}}{{ and .Values.api.autoscaling.enabled (gt (int .Values.api.replicas) 0) | ternary "yes" "" }}{{- end -}}

{{/* The service accounts. With `mode: all` they are one. */}}
{{- define "stellage.api.serviceAccount" -}}
{{- default (eq .Values.mode "all" | ternary (include "stellage.fullname" .) (printf "%s-api" (include "stellage.fullname" .))) .Values.serviceAccounts.api -}}
{{- end -}}
{{- define "stellage.controller.serviceAccount" -}}
{{- if eq .Values.mode "all" -}}
{{- include "stellage.api.serviceAccount" . -}}
{{- else -}}
{{- default (printf "%s-controller" (include "stellage.fullname" .)) .Values.serviceAccounts.controller -}}
{{- end -}}
{{- end -}}

{{- define "stellage.consoleGateway.serviceAccount" -}}
{{- default (printf "%s-console-gateway" (include "stellage.fullname" .)) .Values.serviceAccounts.consoleGateway -}}
{{- end -}}

{{- define "stellage.backup.serviceAccount" -}}
{{- default (printf "%s-backup" (include "stellage.fullname" .)) .Values.serviceAccounts.backup -}}
{{- end -}}

{{/* Where clients reach the console gateway: below the public URL, as `ingress` and `httpRoute` serve it. Empty without a gateway. */}}
{{- define "stellage.consoleGatewayUrl" -}}
{{- if and .Values.consoleGateway.enabled .Values.api.settings.publicUrl -}}
{{- printf "ws%s/v1/console" (.Values.api.settings.publicUrl | trimPrefix "http" | trimSuffix "/") -}}
{{- end -}}
{{- end -}}

{{/* The name of the Secret with the mail server's URL; empty without a mail server. */}}
{{- define "stellage.smtpSecret" -}}
{{- if .Values.smtp.existingSecret -}}{{ .Values.smtp.existingSecret }}
{{- else if .Values.smtp.url -}}{{ include "stellage.fullname" . }}-smtp
{{- end -}}
{{- end -}}
{{- define "stellage.smtpSecretKey" -}}{{ empty .Values.smtp.existingSecret | ternary "url" .Values.smtp.existingSecretKey }}{{- end -}}

{{/* The name of the ConfigMap with the catalogue; empty for the built-in one. */}}
{{- define "stellage.catalogue" -}}
{{- if .Values.existingCatalogue -}}{{ .Values.existingCatalogue }}
{{- else if .Values.catalogue -}}{{ include "stellage.fullname" . }}-catalogue
{{- end -}}
{{- end -}}

{{/* Address ranges as JSON. A single address becomes a range, the only form that NetworkPolicies and CEL know. */}}
{{- define "stellage.ranges" -}}
{{- $ranges := list }}
{{- range . }}
{{- $ranges = append $ranges (contains "/" . | ternary . (printf "%s/%s" . (contains ":" . | ternary "128" "32"))) }}
{{- end }}
{{- toJson $ranges }}
{{- end -}}

{{/* DNS names as JSON, without the forms that the program takes as well: *.Example.com. is example.com. */}}
{{- define "stellage.domains" -}}
{{- $names := list }}
{{- range . }}
{{- $names = append $names (lower . | trimPrefix "*." | trimSuffix ".") }}
{{- end }}
{{- toJson $names }}
{{- end -}}

{{- define "stellage.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}
{{- end -}}

{{/*
Addresses that receivers may not have; crates/sender/src/addresses.rs says why. Those of IPv6 are within 2000::/3, outside of which all are
forbidden.
*/}}
{{- define "stellage.special.ipv4" -}}
["0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "168.63.129.16/32", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.168.0.0/16", "192.175.48.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"]
{{- end -}}
{{- define "stellage.special.ipv6" -}}
["2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20"]
{{- end -}}
