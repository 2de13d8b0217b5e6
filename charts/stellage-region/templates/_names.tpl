{{/* The name of the release's objects. */}}
{{- define "region.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* The labels of every object. */}}
{{- define "region.labels" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "region.serviceAccount" -}}
{{- default (include "region.fullname" .) .Values.serviceAccount.name -}}
{{- end -}}

{{/* The ClusterRole for namespaces of servers. Stellage binds it, and knows it by the prefix. */}}
{{- define "region.servers" -}}
{{- printf "%sservers" .Values.namespacePrefix -}}
{{- end -}}

{{/* The service account of the console gateway. */}}
{{- define "region.consoleAccount" -}}
{{- printf "%s-consoles" (include "region.fullname" .) -}}
{{- end -}}
