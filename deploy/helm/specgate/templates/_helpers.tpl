{{- define "specgate.name" -}}
{{- if contains "specgate" .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-specgate{{ end }}
{{- end }}

{{- define "specgate.selector" -}}
app.kubernetes.io/name: specgate
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "specgate.labels" -}}
{{ include "specgate.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- /* What all three containers have. */}}
{{- define "specgate.container" -}}
image: "{{ .Values.image.repository }}:{{ .Values.image.tag }}"
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
env:
  - {name: RAY_ADDRESS, value: local}
  {{- with .Values.models.hubTokenSecret }}
  - name: HF_TOKEN
    valueFrom: {secretKeyRef: {name: {{ . }}, key: token}}
  {{- end }}
volumeMounts: # last, so that a container can add its own
  - {name: models, mountPath: /models}
  - {name: scratch, mountPath: /tmp, subPath: tmp}
  - {name: scratch, mountPath: /home/specgate, subPath: home}
{{- end }}

{{- define "specgate.flags" -}}
- --threads={{ .threads }}
{{- range .args }}
- {{ . | quote }}
{{- end }}
- --metrics-host=0.0.0.0
- --insecure # of the metrics, which are plain text; sessions stay on loopback
{{- end }}

{{- /* How Kubernetes sees that a service is well; it asks in the container, because nobody else reaches loopback. */}}
{{- define "specgate.health" -}}
exec: {command: [specgate-health, {{ . | quote }}]}
periodSeconds: 10
timeoutSeconds: 10
{{- end }}

{{- define "specgate.resources" -}}
{{- $cards := dict }}
{{- if .gpus }}{{ $cards = dict "limits" (dict "nvidia.com/gpu" .gpus) }}{{ end }}
{{- mergeOverwrite (deepCopy .resources) $cards | toYaml }}
{{- end }}

{{- /* The gateway's settings; what the user gives is over them, key by key. */}}
{{- define "specgate.settings" -}}
{{- $has_own_target := ne .Values.verifier.model "/demo_pair/target" }}
{{- $has_own_draft := or (ne .Values.drafter.model "/demo_pair/draft") (eq .Values.drafter.method "suffix") }}
{{- if and $has_own_target .Values.drafter.enabled (not $has_own_draft) }}
{{- fail "the bundled draft does not go with verifier.model: set drafter.model, or drafter.enabled=false for the target alone" }}
{{- end }}
{{- $door := dict "host" "0.0.0.0" "insecure" true }}
{{- if .Values.tls.secret }}
{{- $files := dict "certificate" "/etc/specgate/tls/tls.crt" "key" "/etc/specgate/tls/tls.key" }}
{{- $door = dict "host" "0.0.0.0" "tls" $files }}
{{- end }}
{{- /* Names that the Service is reached by; a pod without keys answers to no others. */}}
{{- $name := include "specgate.name" . }}
{{- $in_namespace := printf "%s.%s" $name .Release.Namespace }}
{{- $in_cluster := printf "%s.svc" $in_namespace }}
{{- $hosts := list $name $in_namespace $in_cluster (printf "%s.cluster.local" $in_cluster) }}
{{- $gateway := dict
  "http" (merge (dict "port" 8000 "hosts" $hosts) $door)
  "grpc" (merge (dict "port" 8001) $door)
  "operations" (dict "host" "0.0.0.0" "port" 9000 "insecure" true)
  "max_running" (int .Values.verifier.maxSessions) }}
{{- if .Values.keys.secret }}{{ $_ := set $gateway "keys_file" "/etc/specgate/keys/keys.yaml" }}{{ end }}
{{- $drafter := ternary (dict "endpoints" (list "127.0.0.1:7002")) nil .Values.drafter.enabled }}
{{- $settings := dict
  "model_name" .Values.modelName
  "verifier" (dict "endpoints" (list "127.0.0.1:7001") "model" .Values.verifier.model)
  "drafter" $drafter
  "gateway" $gateway
  "drain_s" (int .Values.drainSeconds) }}
{{- mergeOverwrite $settings (deepCopy .Values.gateway.settings) | toYaml }}
{{- end }}
