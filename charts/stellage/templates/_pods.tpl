{{/*
Settings as environment variables: `retrySchedule` becomes STELLAGE_RETRY_SCHEDULE. Those that are null or an
empty list are left out: the program takes no empty text.
*/}}
{{- define "stellage.settings" -}}
{{- range $name, $value := . }}
{{- if not (or (kindIs "invalid" $value) (and (kindIs "slice" $value) (empty $value))) }}
- name: STELLAGE_{{ regexReplaceAll "([A-Z])" $name "_${1}" | upper }}
{{- if kindIs "slice" $value }}
  value: {{ join "," $value | quote }}
{{- else if kindIs "float64" $value }}
  value: {{ eq (floor $value) $value | ternary (printf "%.0f" $value) (printf "%v" $value) | quote }}
{{- else }}
  value: {{ $value | toString | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/*
A Deployment of `component` (api, controller, all or console-gateway), which runs `command` with the values `pods`. `.root` is the chart's scope.
*/}}
{{- define "stellage.deployment" -}}
{{- $root := .root }}
{{- $values := .root.Values }}
{{- $pods := .pods }}
{{- $servesConsoles := eq .component "console-gateway" }}
{{- $servesApi := has .component (list "api" "all") }}
{{- $controls := has .component (list "controller" "all") }}
{{- $labels := dict "app.kubernetes.io/component" .component }}
{{- $delay := $servesApi | ternary (int $values.api.settings.shutdownDelaySeconds) 0 }}
{{- $grace := kindIs "invalid" $values.settings.shutdownGraceSeconds | ternary 20 (int $values.settings.shutdownGraceSeconds) }}
{{- $catalogue := include "stellage.catalogue" $root }}
{{- $smtp := include "stellage.smtpSecret" $root }}
{{- /* Whole folders: Kubernetes never updates a file that is mounted alone, and the catalogue, certificates and tokens are read again. */}}
{{- $volumes := list }}
{{- if $catalogue }}{{ $volumes = append $volumes (dict "name" "catalogue" "configMap" $catalogue) }}{{ end }}
{{- with $values.kubeconfig.existingSecret }}{{ $volumes = append $volumes (dict "name" "kubeconfig" "secret" . "key" $.component) }}{{ end }}
{{- if and $values.receivers.caSecret (not $servesConsoles) }}{{ $volumes = append $volumes (dict "name" "receiver-ca" "secret" $values.receivers.caSecret) }}{{ end }}
{{- if and $controls $values.smtp.caSecret }}{{ $volumes = append $volumes (dict "name" "smtp-ca" "secret" $values.smtp.caSecret) }}{{ end }}
{{- if and $servesApi $values.oidc.existingSecret }}{{ $volumes = append $volumes (dict "name" "oidc" "secret" $values.oidc.existingSecret) }}{{ end }}
{{- if and (or $servesApi $servesConsoles) $values.tls.existingSecret }}{{ $volumes = append $volumes (dict "name" "tls" "secret" $values.tls.existingSecret) }}{{ end }}
{{- if or $controls $servesConsoles }}
{{- range $code, $region := $values.regions }}
{{- $secret := $servesConsoles | ternary $region.consoleSecretName $region.secretName }}
{{- $volumes = append $volumes (dict "name" (printf "region-%s" $code) "secret" $secret "path" (printf "regions/%s" $code)) }}
{{- end }}
{{- end }}
{{- range $code, $region := $values.regions }}
{{- if and $region.prometheusSecretName (not $servesConsoles) }}
{{- $volumes = append $volumes (dict "name" (printf "prometheus-%s" $code) "secret" $region.prometheusSecretName "path" (printf "prometheus/%s" $code)) }}
{{- end }}
{{- end }}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ .name | quote }}
  namespace: {{ $root.Release.Namespace | quote }}
  labels:
    {{- include "stellage.labels" $root | nindent 4 }}
    {{- toYaml $labels | nindent 4 }}
spec:
  {{- if not (and $servesApi (include "stellage.api.autoscales" $root)) }}
  replicas: {{ $pods.replicas }}
  {{- end }}
  selector:
    matchLabels:
      {{- include "stellage.selector" $root | nindent 6 }}
      {{- toYaml $labels | nindent 6 }}
  strategy:
    {{- if $servesConsoles }}
    # A ticket works once: two gateways do not know of each other.
    type: Recreate
    {{- else }}
    type: RollingUpdate
    rollingUpdate: {maxSurge: 1, maxUnavailable: 0}
    {{- end }}
  template:
    metadata:
      labels:
        {{- with $pods.podLabels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
        {{- include "stellage.labels" $root | nindent 8 }}
        {{- toYaml $labels | nindent 8 }}
      annotations:
        kubectl.kubernetes.io/default-container: stellage
        {{- if and $controls $values.smtp.url (not $values.smtp.existingSecret) }}
        checksum/smtp: {{ sha256sum $values.smtp.url }}
        {{- end }}
        {{- with $pods.podAnnotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    spec:
      serviceAccountName: {{ .serviceAccount | quote }}
      automountServiceAccountToken: {{ empty $values.kubeconfig.existingSecret }}
      enableServiceLinks: false
      # Longer than what the program takes to end: it accepts requests for {{ $delay }} s more, and then finishes what is in progress.
      terminationGracePeriodSeconds: {{ add $delay $grace 10 }}
      {{- with $values.podSecurityContext }}
      securityContext:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $values.dnsConfig }}
      dnsConfig:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      containers:
        - name: stellage
          image: {{ include "stellage.image" $root | quote }}
          imagePullPolicy: {{ $values.image.pullPolicy }}
          args: [{{ .command }}]
          env:
            - name: STELLAGE_NAMESPACE
              value: {{ $root.Release.Namespace | quote }}
            {{- if $values.kubeconfig.existingSecret }}
            - name: KUBECONFIG
              value: /etc/stellage/kubeconfig/{{ .component }}
            {{- end }}
            {{- if not $servesConsoles }}
            # Receivers must not have the addresses of this pod and its node.
            - name: POD_IPS
              valueFrom: {fieldRef: {fieldPath: status.podIPs}}
            - name: HOST_IPS
              valueFrom: {fieldRef: {fieldPath: status.hostIPs}}
            - name: STELLAGE_OWN_ADDRESSES
              value: $(POD_IPS),$(HOST_IPS)
            {{- end }}
            {{- if $servesApi }}
            - name: STELLAGE_LISTEN
              value: {{ printf "%s:8080" $values.listenAddress | quote }}
            {{- end }}
            - name: STELLAGE_METRICS_LISTEN
              value: {{ printf "%s:9090" $values.listenAddress | quote }}
            {{- if $catalogue }}
            - name: STELLAGE_CATALOGUE
              value: /etc/stellage/catalogue/catalogue.yaml
            {{- end }}
            {{- if and $values.receivers.caSecret (not $servesConsoles) }}
            - name: STELLAGE_RECEIVER_CA
              value: /etc/stellage/receiver-ca/ca.crt
            {{- end }}
            {{- if and $values.traces.existingSecret (not $servesConsoles) }}
            - name: OTEL_EXPORTER_OTLP_HEADERS
              valueFrom: {secretKeyRef: {name: {{ $values.traces.existingSecret | quote }}, key: {{ $values.traces.existingSecretKey | quote }}}}
            {{- end }}
            {{- if $servesConsoles }}
            - name: STELLAGE_CONSOLE_LISTEN
              value: {{ printf "%s:8081" $values.listenAddress | quote }}
            {{- end }}
            {{- if and $servesApi (kindIs "invalid" $values.api.settings.consoleGatewayUrl) (include "stellage.consoleGatewayUrl" $root) }}
            - name: STELLAGE_CONSOLE_GATEWAY_URL
              value: {{ include "stellage.consoleGatewayUrl" $root | quote }}
            {{- end }}
            {{- if and (or $servesApi $servesConsoles) $values.tls.existingSecret }}
            - name: STELLAGE_TLS_CERT
              value: /etc/stellage/tls/tls.crt
            - name: STELLAGE_TLS_KEY
              value: /etc/stellage/tls/tls.key
            {{- end }}
            {{- if and $servesApi $values.oidc.existingSecret }}
            - name: STELLAGE_OIDC_CLIENT_SECRET_FILE
              value: /etc/stellage/oidc/{{ $values.oidc.existingSecretKey }}
            {{- end }}
            {{- if $controls }}
            - name: STELLAGE_SERVICE_ACCOUNT
              value: {{ .serviceAccount | quote }}
            {{- if eq $values.mode "split" }}
            - name: STELLAGE_API_SERVICE_ACCOUNT
              value: {{ include "stellage.api.serviceAccount" $root | quote }}
            {{- end }}
            {{- if $smtp }}
            - name: STELLAGE_SMTP_URL
              valueFrom: {secretKeyRef: {name: {{ $smtp | quote }}, key: {{ include "stellage.smtpSecretKey" $root | quote }}}}
            {{- end }}
            {{- if $values.smtp.caSecret }}
            - name: STELLAGE_SMTP_CA
              value: /etc/stellage/smtp-ca/ca.crt
            {{- end }}
            {{- end }}
            {{- $settings := merge dict $values.settings ($servesApi | ternary $values.api.settings dict) ($controls | ternary $values.controller.settings dict) ($servesConsoles | ternary $values.consoleGateway.settings dict) }}
            {{- with include "stellage.settings" $settings | trim }}
            {{- . | nindent 12 }}
            {{- end }}
            {{- with $pods.extraEnv }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
          ports:
            {{- if $servesApi }}
            - {name: rest, containerPort: 8080}
            {{- end }}
            {{- if $servesConsoles }}
            - {name: console, containerPort: 8081}
            {{- end }}
            - {name: metrics, containerPort: 9090}
          livenessProbe:
            httpGet: {path: /healthz, port: metrics}
            periodSeconds: 10
            timeoutSeconds: 5
            failureThreshold: 3
          readinessProbe:
            httpGet: {path: /readyz, port: metrics}
            periodSeconds: 2
            timeoutSeconds: 2
            # A single late answer takes no pod out of the Service; one that ends leaves it without a probe.
            failureThreshold: 2
          resources:
            {{- toYaml $pods.resources | nindent 12 }}
          {{- with $values.securityContext }}
          securityContext:
            {{- toYaml . | nindent 12 }}
          {{- end }}
          {{- if or $volumes $pods.extraVolumeMounts }}
          volumeMounts:
            {{- range $volumes }}
            - {name: {{ .name }}, mountPath: /etc/stellage/{{ default .name .path }}, readOnly: true}
            {{- end }}
            {{- with $pods.extraVolumeMounts }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
          {{- end }}
      {{- if or $volumes $pods.extraVolumes }}
      volumes:
        {{- range $volumes }}
        - name: {{ .name }}
          {{- if .secret }}
          # Mode 0444: files belong to root, the pod's user has no fixed id, and nobody else is in the pod.
          secret: {secretName: {{ .secret | quote }}, defaultMode: 292{{ with .key }}, items: [{key: {{ . }}, path: {{ . }}}]{{ end }}}
          {{- else }}
          configMap: {name: {{ .configMap | quote }}}
          {{- end }}
        {{- end }}
        {{- with $pods.extraVolumes }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- end }}
      topologySpreadConstraints:
        {{- $constraints := $pods.topologySpreadConstraints }}
        {{- if kindIs "invalid" $constraints }}
        {{- $constraints = list }}
        {{- range $key := list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
        {{- $constraints = append $constraints (dict "maxSkew" 1 "topologyKey" $key "whenUnsatisfiable" "ScheduleAnyway") }}
        {{- end }}
        {{- end }}
        {{- range $constraints }}
        - {{- toYaml . | nindent 10 }}
          {{- if not .labelSelector }}
          labelSelector:
            matchLabels:
              {{- include "stellage.selector" $root | nindent 14 }}
              {{- toYaml $labels | nindent 14 }}
          {{- end }}
        {{- end }}
      {{- with $values.imagePullSecrets }}
      imagePullSecrets:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $pods.priorityClassName }}
      priorityClassName: {{ . | quote }}
      {{- end }}
      {{- with $pods.nodeSelector }}
      nodeSelector:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $pods.tolerations }}
      tolerations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $pods.affinity }}
      affinity:
        {{- toYaml . | nindent 8 }}
      {{- end }}
{{- end -}}

{{/* A PodDisruptionBudget for the pods of `component`, of which there are at least `replicas`. */}}
{{- define "stellage.podDisruptionBudget" -}}
{{- if and .pods.podDisruptionBudget.enabled (gt (int .replicas) 1) }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ .name | quote }}
  namespace: {{ .root.Release.Namespace | quote }}
  labels:
    {{- include "stellage.labels" .root | nindent 4 }}
    app.kubernetes.io/component: {{ .component }}
spec:
  maxUnavailable: 1
  # A pod that is not ready serves nobody, so it may go.
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- include "stellage.selector" .root | nindent 6 }}
      app.kubernetes.io/component: {{ .component }}
{{- end }}
{{- end -}}
