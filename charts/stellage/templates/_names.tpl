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
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* The labels of every object. */}}
{{- define "stellage.labels" -}}
{{ include "stellage.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* The component whose pods serve the REST API, and the one that runs the controllers. */}}
{{- define "stellage.api.component" -}}{{ eq .Values.mode "all" | ternary "all" "api" }}{{- end -}}
{{- define "stellage.controller.component" -}}{{ eq .Values.mode "all" | ternary "all" "controller" }}{{- end -}}

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

{{- define "stellage.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}
{{- end -}}
