{{/* Names: one release's objects share a prefix; a component is appended. */}}
{{- define "cognitora.fullname" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "cognitora.selector" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "cognitora.labels" -}}
{{ include "cognitora.selector" . }}
app.kubernetes.io/part-of: cognitora
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{- define "cognitora.metadata" -}}
name: {{ include "cognitora.fullname" .root }}-{{ .name | default .component }}
namespace: {{ .root.Release.Namespace }}
labels: {{- include "cognitora.labels" . | nindent 2 }}
{{- end }}

{{- define "cognitora.image" -}}
{{- $i := .root.Values.global.image }}
{{- list $i.registry $i.repository .program | compact | join "/" }}:{{ $i.tag | default .root.Chart.AppVersion }}
{{- end }}

{{/* What follows from the values. An empty text is false. */}}
{{- define "cognitora.mtls" -}}{{ if or .Values.pki.createCa .Values.pki.existingSecret }}true{{ end }}{{- end }}
{{- define "cognitora.caSecret" -}}{{ .Values.pki.existingSecret | default (printf "%s-ca" (include "cognitora.fullname" .)) }}{{- end }}
{{- define "cognitora.keysSecret" -}}{{ include "cognitora.fullname" . }}-keys{{- end }}
{{- define "cognitora.hasKeys" -}}{{ if or (include "cognitora.mtls" .) .Values.auth.enabled }}true{{ end }}{{- end }}
{{- define "cognitora.several" -}}{{ if or (gt (int .Values.router.replicas) 1) .Values.router.autoscaling.enabled }}true{{ end }}{{- end }}
{{- define "cognitora.backend" -}}{{ .Values.cluster.stateBackend | default (ternary "etcd" "embedded" (eq (include "cognitora.several" .) "true")) }}{{- end }}
{{- define "cognitora.ownEtcd" -}}{{ if and (eq (include "cognitora.backend" .) "etcd") (not .Values.etcd.endpoints) }}true{{ end }}{{- end }}
{{- define "cognitora.inKubernetes" -}}{{ if eq (include "cognitora.backend" .) "kubernetes" }}true{{ end }}{{- end }}
{{- define "cognitora.kvPassword" -}}{{ .Values.kvcached.stores.passwordSecret | default (printf "%s-kv-password" (include "cognitora.fullname" .)) }}{{- end }}
{{/* The router has the pods of InferencePools as nodes (settings.inference_pools). */}}
{{- define "cognitora.pools" -}}{{ if (.Values.settings).inference_pools }}true{{ end }}{{- end }}
{{- define "cognitora.routerToken" -}}{{ if or (include "cognitora.inKubernetes" .) (include "cognitora.pools" .) }}true{{ end }}{{- end }}
{{- define "cognitora.scheme" -}}{{ ternary "HTTPS" "HTTP" (eq (include "cognitora.mtls" .) "true") }}{{- end }}
{{- define "cognitora.routerHost" -}}{{ include "cognitora.fullname" . }}-router-grpc.{{ .Release.Namespace }}.svc{{- end }}
{{- define "cognitora.hasEngine" -}}{{ if ne .Values.agent.engine "openai_compat" }}true{{ end }}{{- end }}

{{/* Refuse values that cannot work together, with a sentence. */}}
{{- define "cognitora.check" -}}
{{- if and (eq (include "cognitora.several" .) "true") (eq (include "cognitora.backend" .) "embedded") }}
{{- fail "router.replicas above 1, and router.autoscaling, need cluster.stateBackend etcd or kubernetes: with embedded membership each agent registers with one router only" }}
{{- end }}
{{- if and .Values.agent.enabled (eq .Values.agent.engine "openai_compat") (not .Values.agent.engineUrl) }}
{{- fail "agent.engine openai_compat needs agent.engineUrl, the base URL of the engine" }}
{{- end }}
{{- if and .Values.agent.enabled (eq .Values.agent.engine "llama_cpp") (not .Values.agent.model.path) }}
{{- fail "agent.engine llama_cpp needs agent.model.path, a GGUF file below /models, and agent.modelsVolume, the volume that has it" }}
{{- end }}
{{- if and .Values.agent.autoscaling.enabled (eq .Values.agent.kind "DaemonSet") }}
{{- fail "agent.kind DaemonSet has one pod on each machine: agent.autoscaling cannot be enabled with it" }}
{{- end }}
{{- range $what := list "agent" "router" }}
{{- $a := (index $.Values $what).autoscaling }}
{{- if and $a.enabled (gt (int $a.minReplicas) (int $a.maxReplicas)) }}
{{- fail (printf "%s.autoscaling.minReplicas is above maxReplicas" $what) }}
{{- end }}
{{- end }}
{{- with .Values.kvcached.stores }}
{{- if and .storageClassName (not .ssdGib) }}
{{- fail "kvcached.stores.storageClassName is of the volumes of the SSD tier: set kvcached.stores.ssdGib too, or leave it out" }}
{{- end }}
{{- end }}
{{- if and .Values.auth.existingSecret (not .Values.auth.enabled) }}
{{- fail "auth.existingSecret is set, but auth.enabled is false: nobody would need a key" }}
{{- end }}
{{- if and .Values.etcd.existingSecret (not .Values.etcd.endpoints) }}
{{- fail "etcd.existingSecret belongs to etcd.endpoints, an etcd that you have; the chart's own etcd uses the cluster's certificates" }}
{{- end }}
{{- if and .Values.router.ingress.enabled (not .Values.router.ingress.host) }}
{{- fail "router.ingress.enabled needs router.ingress.host" }}
{{- end }}
{{- end }}

{{/* Print a map as TOML: first its values, then its tables. Scalars and lists are TOML in JSON's spelling. */}}
{{- define "cognitora.toml" -}}
{{- $path := .path }}
{{- $own := dict }}
{{- range $k, $v := .map }}{{ if not (kindIs "map" $v) }}{{ $_ := set $own $k $v }}{{ end }}{{ end }}
{{- if and $path $own }}
[{{ $path }}]
{{ end }}
{{- range $k, $v := $own }}{{ if not (kindIs "invalid" $v) }}{{ include "cognitora.tomlKey" $k }} = {{ $v | toRawJson }}
{{ end }}{{ end }}
{{- range $k, $v := .map }}{{ if kindIs "map" $v }}
{{- include "cognitora.toml" (dict "path" (list $path (include "cognitora.tomlKey" $k) | compact | join ".") "map" $v) }}
{{- end }}{{ end }}
{{- end }}
{{- define "cognitora.tomlKey" -}}{{ if regexMatch "^[A-Za-z0-9_-]+$" . }}{{ . }}{{ else }}{{ . | toRawJson }}{{ end }}{{- end }}

{{/* Settings that all programs have. leaf: name of the certificate. */}}
{{- define "cognitora.common" -}}
{{- $root := .root }}
{{- $etcd := eq (include "cognitora.backend" $root) "etcd" }}
{{- $mtls := eq (include "cognitora.mtls" $root) "true" }}
{{- $pki := "/etc/cognitora/pki" }}
{{- $cluster := dict "name" $root.Values.cluster.name "state_backend" (include "cognitora.backend" $root) "router" (printf "%s:9090" (include "cognitora.routerHost" $root)) }}
{{- if $etcd }}
{{- if $root.Values.etcd.endpoints }}
{{- $_ := set $cluster "etcd_endpoints" $root.Values.etcd.endpoints }}
{{- if $root.Values.etcd.existingSecret }}
{{- $_ := merge $cluster (dict "etcd_ca_file" "/etc/cognitora/etcd/ca.pem" "etcd_cert_file" "/etc/cognitora/etcd/tls.crt" "etcd_key_file" "/etc/cognitora/etcd/tls.key") }}
{{- end }}
{{- else }}
{{- $hosts := list }}
{{- range until (int $root.Values.etcd.replicas) }}
{{- $hosts = append $hosts (printf "%s://%s-etcd-%d.%s-etcd.%s.svc:2379" (ternary "https" "http" $mtls) (include "cognitora.fullname" $root) . (include "cognitora.fullname" $root) $root.Release.Namespace) }}
{{- end }}
{{- $_ := set $cluster "etcd_endpoints" $hosts }}
{{- if $mtls }}
{{- $_ := merge $cluster (dict "etcd_ca_file" "/etc/cognitora/ca/ca.pem" "etcd_cert_file" (printf "%s/%s.pem" $pki .leaf) "etcd_key_file" (printf "%s/%s.key" $pki .leaf)) }}
{{- end }}
{{- end }}
{{- end }}
{{- $security := dict "insecure" true }}
{{- if $mtls }}
{{- $security = dict "require_mtls" true "ca_file" "/etc/cognitora/ca/ca.pem" "cert_file" (printf "%s/%s.pem" $pki .leaf) "key_file" (printf "%s/%s.key" $pki .leaf) "admin_keys_file" "/etc/cognitora/keys/admin-keys" }}
{{- end }}
{{- dict "cluster" $cluster "security" $security "log" (dict "format" "json") | toJson }}
{{- end }}

{{/* The settings of the router, the agent, its block store, and metrics, as JSON. */}}
{{- define "cognitora.settings.router" -}}
{{- $v := .Values.router }}
{{- $s := include "cognitora.common" (dict "root" . "leaf" "router") | fromJson }}
{{- $router := dict "listen" "0.0.0.0:8080" "listen_grpc" "0.0.0.0:9090" "listen_admin" "0.0.0.0:9091" "drain_timeout" (printf "%ds" (int $v.drainSeconds)) }}
{{- if $v.tlsSecret }}{{ $_ := merge $router (dict "tls_cert_file" "/etc/cognitora/gateway/tls.crt" "tls_key_file" "/etc/cognitora/gateway/tls.key") }}{{ end }}
{{- if $v.scoreWeights }}{{ $_ := set $router "score_weights" $v.scoreWeights }}{{ end }}
{{- $admission := dict }}
{{- with $v.admission }}
{{- if hasKey . "maxQueue" }}{{ $_ := set $admission "max_queue" (int .maxQueue) }}{{ end }}
{{- if hasKey . "ttftSloMs" }}{{ $_ := set $admission "ttft_slo" (printf "%dms" (int .ttftSloMs)) }}{{ end }}
{{- if hasKey . "queueTimeoutMs" }}{{ $_ := set $admission "queue_timeout" (printf "%dms" (int .queueTimeoutMs)) }}{{ end }}
{{- if hasKey . "maxConcurrentPerReplica" }}{{ $_ := set $admission "max_concurrent_per_replica" (int .maxConcurrentPerReplica) }}{{ end }}
{{- end }}
{{- if $admission }}{{ $_ := set $router "admission" $admission }}{{ end }}
{{- range $section := list "rateLimit" "cascade" "disagg" }}
{{- $out := dict }}
{{- range $k, $x := index $v $section }}{{ $_ := set $out (snakecase $k) $x }}{{ end }}
{{- if $out }}{{ $_ := set $router (snakecase $section) $out }}{{ end }}
{{- end }}
{{- $_ := set $s "router" $router }}
{{- if .Values.auth.enabled }}
{{- $_ := set $s "auth" (dict "enabled" true "api_keys_file" (ternary "/etc/cognitora/api/api-keys" "/etc/cognitora/keys/api-keys" (ne .Values.auth.existingSecret ""))) }}
{{- $_ := set $s.security "isolation_secret_file" "/etc/cognitora/keys/isolation.secret" }}
{{- else }}
{{- $hosts := list (printf "%s-router.%s" (include "cognitora.fullname" .) .Release.Namespace) }}
{{- if and $v.ingress.enabled $v.ingress.host }}{{ $hosts = append $hosts $v.ingress.host }}{{ end }}
{{- $_ := set $s.security "allowed_hosts" $hosts }}
{{- end }}
{{- if .Values.models }}{{ $_ := set $s "models" .Values.models }}{{ end }}
{{- mustMergeOverwrite $s (deepCopy .Values.settings) | toJson }}
{{- end }}

{{/* The stores of their own, by the names under which their pods come back; a JSON list. */}}
{{- define "cognitora.storePeers" -}}
{{- $hosts := list }}
{{- range until (int .Values.kvcached.stores.replicas) }}
{{- $hosts = append $hosts (printf "%s-kvcached-%d.%s-kvcached.%s.svc:7091" (include "cognitora.fullname" $) . (include "cognitora.fullname" $) $.Release.Namespace) }}
{{- end }}
{{- $hosts | toRawJson }}
{{- end }}

{{- define "cognitora.settings.kvcached" -}}
{{- $v := .Values.kvcached.stores }}
{{- $s := include "cognitora.common" (dict "root" . "leaf" "kvcached") | fromJson }}
{{- $kv := dict "ram" (printf "%dGiB" (int $v.ramGib)) "ssd" (printf "%dGiB" (int $v.ssdGib)) "ssd_dir" "/var/lib/cognitora/kv" "listen_admin" "0.0.0.0:7093" "peers" (include "cognitora.storePeers" . | fromJsonArray) }}
{{- $_ := merge $kv (dict "resp_listen" "0.0.0.0:7092" "resp_password_file" "/etc/cognitora/password/password" "resp_role" "kvcached") }}
{{- if ne (include "cognitora.mtls" .) "true" }}{{ $_ := set $kv "transport" "off" }}{{ end }}
{{- $_ := set $s "kv" $kv }}
{{- mustMergeOverwrite $s (deepCopy .Values.settings) | toJson }}
{{- end }}

{{- define "cognitora.tp" -}}{{ .Values.agent.tensorParallel | default .Values.agent.gpus | default 1 | int }}{{- end }}

{{- define "cognitora.settings.agent" -}}
{{- $v := .Values.agent }}
{{- $s := include "cognitora.common" (dict "root" . "leaf" "agent") | fromJson }}
{{- $agent := dict "listen" "0.0.0.0:7080" "listen_admin" "0.0.0.0:7081" "drain_timeout" (printf "%ds" (int $v.drainSeconds)) }}
{{- if not .Values.kvcached.enabled }}{{ $_ := set $agent "kv_uds" "" }}{{ end }}
{{- $_ := set $s "agent" $agent }}
{{- $engine := dict "kind" $v.engine "model" $v.model.name "url" "http://127.0.0.1:8000" }}
{{- if eq $v.engine "openai_compat" }}
{{- $_ := set $engine "url" $v.engineUrl }}
{{- if $v.engineApiKeySecret }}{{ $_ := set $engine "api_key_file" "/etc/cognitora/engine/api-key" }}{{ end }}
{{- else if ne $v.engine "llama_cpp" }}
{{- $_ := merge $engine (dict "kv_events" "ipc:///run/engine/kv.events" "kv_events_replay" "ipc:///run/engine/kv.replay") }}
{{- end }}
{{- if $v.model.path }}{{ $_ := set $engine "model_path" $v.model.path }}{{ end }}
{{- if has $v.engine (list "vllm" "sglang") }}{{ $_ := set $engine "tp" (include "cognitora.tp" . | int) }}{{ end }}
{{- $_ := set $s "engine" $engine }}
{{- if .Values.models }}{{ $_ := set $s "models" .Values.models }}{{ end }}
{{- if .Values.kvcached.enabled }}
{{- $kv := dict "ram" (printf "%dGiB" (int .Values.kvcached.ramGib)) "ssd" (printf "%dGiB" (int .Values.kvcached.ssdGib)) "listen_admin" "0.0.0.0:7093" }}
{{- if .Values.kvcached.ssdGib }}{{ $_ := set $kv "ssd_dir" "/var/lib/cognitora/kv" }}{{ end }}
{{- if .Values.kvcached.stores.replicas }}{{ $_ := set $kv "peers" (include "cognitora.storePeers" . | fromJsonArray) }}{{ end }}
{{- if ne (include "cognitora.mtls" .) "true" }}{{ $_ := set $kv "transport" "off" }}{{ end }}
{{- $_ := set $s "kv" $kv }}
{{- end }}
{{- mustMergeOverwrite $s (deepCopy .Values.settings) | toJson }}
{{- end }}

{{- define "cognitora.settings.metrics" -}}
{{- $s := include "cognitora.common" (dict "root" . "leaf" "metrics") | fromJson }}
{{- $metrics := dict "listen" "0.0.0.0:9092" "scrape_interval" .Values.metrics.scrapeInterval "routers" (list (printf "router=%s://%s:9091" (lower (include "cognitora.scheme" .)) (include "cognitora.routerHost" .))) }}
{{- if eq (include "cognitora.mtls" .) "true" }}{{ $_ := set $metrics "routers_ca_file" "/etc/cognitora/ca/ca.pem" }}{{ end }}
{{- $_ := set $s "metrics" $metrics }}
{{- with .Values.metrics.redfish.bmcs }}{{ $_ := set $s "bmcs" . }}{{ end }}
{{- mustMergeOverwrite $s (deepCopy .Values.settings) | toJson }}
{{- end }}

{{/* Parts of pods. */}}
{{- define "cognitora.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}
{{- define "cognitora.containerSecurity" -}}
{allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
{{- end }}

{{- define "cognitora.podCommon" -}}
{{- with .root.Values.global.image.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
serviceAccountName: {{ include "cognitora.fullname" .root }}-{{ .component }}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext: {{- include "cognitora.podSecurity" . | nindent 2 }}
{{- with .values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
topologySpreadConstraints:
  {{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "cognitora.selector" $ | nindent 8 }}
  {{- end }}
{{- end }}

{{/* The init container that makes the pod's certificate: role, names, and for an agent its node. The CA's key is mounted here alone. */}}
{{- define "cognitora.pkiInit" -}}
{{- if eq (include "cognitora.mtls" .root) "true" }}
- name: pki
  image: {{ include "cognitora.image" (dict "root" .root "program" "cgn-ctl") }}
  imagePullPolicy: {{ .root.Values.global.image.pullPolicy }}
  command: [cgn-ctl]
  args:
    - pki
    - bootstrap
    - --out=/etc/cognitora/pki
    - {{ printf "--name=%s" .root.Values.cluster.name }}
    - {{ printf "--leaf=%s" .leaf }}
    - --node=$(CGN_NODE)
    - --san=$(POD_IP)
    {{- range .names }}
    - {{ printf "--san=%s" . }}
    {{- end }}
    - {{ printf "--days=%d" (int .root.Values.pki.days) }}
  env:
    - {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
    - {name: CGN_NODE, valueFrom: {fieldRef: {fieldPath: {{ .node | default "metadata.name" }}}}}
  securityContext: {{ include "cognitora.containerSecurity" . }}
  resources: {requests: {cpu: 10m, memory: 32Mi}, limits: {memory: 64Mi}}
  volumeMounts:
    - {name: pki, mountPath: /etc/cognitora/pki}
    - {name: authority, mountPath: /etc/cognitora/pki/ca.pem, subPath: ca.pem, readOnly: true}
    - {name: authority, mountPath: /etc/cognitora/pki/ca.key, subPath: ca.key, readOnly: true}
{{- end }}
{{- end }}

{{- define "cognitora.mounts" -}}
- {name: config, mountPath: /etc/cognitora/cognitora.toml, subPath: {{ .file }}, readOnly: true}
{{- if eq (include "cognitora.mtls" .root) "true" }}
- {name: pki, mountPath: /etc/cognitora/pki, readOnly: true}
- {name: ca, mountPath: /etc/cognitora/ca, readOnly: true}
{{- end }}
{{- if include "cognitora.hasKeys" .root }}
- {name: keys, mountPath: /etc/cognitora/keys, readOnly: true}
{{- end }}
{{- if and .root.Values.etcd.existingSecret (eq (include "cognitora.backend" .root) "etcd") }}
- {name: etcd, mountPath: /etc/cognitora/etcd, readOnly: true}
{{- end }}
- {name: tmp, mountPath: /tmp}
{{- if .token }}
- {name: token, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}
{{- end }}
{{- end }}

{{- define "cognitora.tokenVolume" -}}
# The token of the API server, for the containers that keep membership there, and not for the engine.
- name: token
  projected:
    defaultMode: 0440
    sources:
      - serviceAccountToken: {path: token, expirationSeconds: 3607}
      - configMap: {name: kube-root-ca.crt, items: [{key: ca.crt, path: ca.crt}]}
      - downwardAPI: {items: [{path: namespace, fieldRef: {fieldPath: metadata.namespace}}]}
{{- end }}

{{/* keys: files of the secret of keys that the programs of the pod need. */}}
{{- define "cognitora.volumes" -}}
- {name: config, configMap: {name: {{ include "cognitora.fullname" .root }}-config}}
{{- if eq (include "cognitora.mtls" .root) "true" }}
- {name: pki, emptyDir: {medium: Memory, sizeLimit: 1Mi}}
- {name: ca, secret: {secretName: {{ include "cognitora.caSecret" .root }}, defaultMode: 0440, items: [{key: ca.pem, path: ca.pem}]}}
- {name: authority, secret: {secretName: {{ include "cognitora.caSecret" .root }}, defaultMode: 0440}}
{{- end }}
{{- if include "cognitora.hasKeys" .root }}
- name: keys
  secret:
    secretName: {{ include "cognitora.keysSecret" .root }}
    defaultMode: 0440
    items:
      {{- range .keys }}
      - {key: {{ . }}, path: {{ . }}}
      {{- end }}
{{- end }}
{{- if and .root.Values.etcd.existingSecret (eq (include "cognitora.backend" .root) "etcd") }}
- {name: etcd, secret: {secretName: {{ .root.Values.etcd.existingSecret }}, defaultMode: 0440}}
{{- end }}
- {name: tmp, emptyDir: {}}
{{- if .token }}
{{ include "cognitora.tokenVolume" .root }}
{{- end }}
{{- end }}

{{- define "cognitora.probes" -}}
{{- $get := printf "scheme: %s, port: %s" .scheme .port }}
startupProbe: {httpGet: { {{- $get }}, path: /healthz}, periodSeconds: 1, failureThreshold: 60}
livenessProbe: {httpGet: { {{- $get }}, path: /healthz}, periodSeconds: 10, timeoutSeconds: 5, failureThreshold: 6}
readinessProbe: {httpGet: { {{- $get }}, path: /readyz}, periodSeconds: 2, timeoutSeconds: 2, failureThreshold: 2}
{{- end }}
