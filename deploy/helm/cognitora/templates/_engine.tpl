{{/* The engine's command line, as cgn-agent would start it (src/policy/node/engine). A JSON list. */}}
{{- define "cognitora.engineArgv" -}}
{{- $v := .Values.agent }}
{{- $weights := $v.model.path | default $v.model.name }}
{{- $tp := include "cognitora.tp" . }}
{{- $events := dict "enable_kv_cache_events" true "publisher" "zmq" "endpoint" "ipc:///run/engine/kv.events" "replay_endpoint" "ipc:///run/engine/kv.replay" | toRawJson }}
{{- $argv := list }}
{{- if eq $v.engine "sim" }}
{{- $argv = list "cgn-sim" "--listen" "127.0.0.1:8000" "--model" $v.model.name "--kv-events" "ipc:///run/engine/kv.events" "--kv-events-replay" "ipc:///run/engine/kv.replay" }}
{{- else if eq $v.engine "vllm" }}
{{- $argv = list "vllm" "serve" $weights "--served-model-name" $v.model.name "--host" "127.0.0.1" "--port" "8000" "--tensor-parallel-size" $tp }}
{{- if $v.model.contextTokens }}{{ $argv = concat $argv (list "--max-model-len" (int $v.model.contextTokens | toString)) }}{{ end }}
{{- if $v.memoryFraction }}{{ $argv = concat $argv (list "--gpu-memory-utilization" (toString $v.memoryFraction)) }}{{ end }}
{{- $argv = concat $argv (list "--kv-events-config" $events "--enable-prompt-tokens-details") }}
{{- else if eq $v.engine "sglang" }}
{{- $argv = list "python3" "-m" "sglang.launch_server" "--model-path" $weights "--served-model-name" $v.model.name "--host" "127.0.0.1" "--port" "8000" "--tp-size" $tp }}
{{- if $v.model.contextTokens }}{{ $argv = concat $argv (list "--context-length" (int $v.model.contextTokens | toString)) }}{{ end }}
{{- if $v.memoryFraction }}{{ $argv = concat $argv (list "--mem-fraction-static" (toString $v.memoryFraction)) }}{{ end }}
{{- $events = dict "publisher" "zmq" "endpoint" "ipc:///run/engine/kv.events" "replay_endpoint" "ipc:///run/engine/kv.replay" | toRawJson }}
{{- $argv = concat $argv (list "--enable-metrics" "--enable-cache-report" "--kv-events-config" $events) }}
{{- else if eq $v.engine "llama_cpp" }}
{{- $argv = list "/app/llama-server" "--model" $v.model.path "--alias" $v.model.name "--host" "127.0.0.1" "--port" "8000" }}
{{- if $v.model.contextTokens }}{{ $argv = concat $argv (list "--ctx-size" (int $v.model.contextTokens | toString)) }}{{ end }}
{{- $argv = concat $argv (list "--n-gpu-layers" (ternary "999" "0" (gt (int $v.gpus) 0)) "--parallel" "4" "--metrics" "--slots") }}
{{- end }}
{{- concat ($v.engineCommand | default $argv) $v.engineArgs | toRawJson }}
{{- end }}

{{- define "cognitora.engineImage" -}}
{{- $usual := dict "vllm" "vllm/vllm-openai:v0.11.0" "sglang" "lmsysorg/sglang:v0.5.3" "llama_cpp" (ternary "ghcr.io/ggml-org/llama.cpp:server-cuda" "ghcr.io/ggml-org/llama.cpp:server" (gt (int .Values.agent.gpus) 0)) }}
{{- .Values.agent.engineImage | default (index $usual .Values.agent.engine) | default (include "cognitora.image" (dict "root" . "program" "cgn-sim")) }}
{{- end }}

{{/* The engine: a sidecar that starts before the agent and ends after it has drained. */}}
{{- define "cognitora.engine" -}}
{{- $v := .Values.agent }}
{{- $argv := include "cognitora.engineArgv" . | fromJsonArray }}
- name: engine
  image: {{ include "cognitora.engineImage" . }}
  imagePullPolicy: {{ .Values.global.image.pullPolicy }}
  restartPolicy: Always
  command: [{{ first $argv | toRawJson }}]
  args: {{- rest $argv | toYaml | nindent 4 }}
  env:
    - {name: HOME, value: /var/cache/engine}
    - {name: USER, value: cognitora}
    - {name: XDG_CACHE_HOME, value: /var/cache/engine}
    {{- if has $v.engine (list "vllm" "sglang") }}
    - {name: HF_HOME, value: {{ ternary "/models/huggingface" "/var/cache/engine/huggingface" (not (empty $v.modelsVolume)) }}}
    {{- end }}
    {{- if and (eq $v.engine "llama_cpp") .Values.auth.enabled }}
    - {name: LLAMA_ARG_CACHE_RAM, value: "0"} # the server's own cache knows no tenants
    {{- end }}
    {{- if .Values.kvcached.stores.replicas }}
    - {name: COGNITORA_KV_PASSWORD, valueFrom: {secretKeyRef: {name: {{ include "cognitora.kvPassword" . }}, key: password}}}
    - {name: COGNITORA_KV_URL, value: "redis://:$(COGNITORA_KV_PASSWORD)@{{ include "cognitora.fullname" . }}-kv.{{ .Release.Namespace }}.svc:7092"}
    {{- if eq $v.engine "vllm" }}
    - {name: LMCACHE_REMOTE_URL, value: $(COGNITORA_KV_URL)} # where engineArgs choose LMCache
    - {name: LMCACHE_REMOTE_SERDE, value: naive}
    {{- end }}
    {{- end }}
    {{- with $v.engineEnv }}{{ toYaml . | nindent 4 }}{{ end }}
  {{- $resources := deepCopy $v.engineResources }}
  {{- if $v.gpus }}
  {{- $resources = mustMergeOverwrite $resources (dict "limits" (dict "nvidia.com/gpu" (int $v.gpus))) }}
  {{- end }}
  {{- with $resources }}
  resources: {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext: {{ include "cognitora.containerSecurity" . }}
  volumeMounts:
    - {name: cache, mountPath: /var/cache/engine}
    - {name: events, mountPath: /run/engine}
    - {name: tmp, mountPath: /tmp}
    {{- if has $v.engine (list "vllm" "sglang") }}
    - {name: shm, mountPath: /dev/shm}
    {{- end }}
    {{- if $v.modelsVolume }}
    - {name: models, mountPath: /models}
    {{- end }}
{{- end }}

{{- define "cognitora.kvcached" -}}
- name: kvcached
  image: {{ include "cognitora.image" (dict "root" . "program" "cgn-kvcached") }}
  imagePullPolicy: {{ .Values.global.image.pullPolicy }}
  restartPolicy: Always
  command: [cgn-kvcached]
  args: [--config, /etc/cognitora/cognitora.toml]
  ports:
    - {name: kv-grpc, containerPort: 7090}
    - {name: kv-quic, containerPort: 7091, protocol: UDP}
    - {name: kv-admin, containerPort: 7093}
  livenessProbe: {httpGet: {scheme: {{ include "cognitora.scheme" . }}, port: kv-admin, path: /healthz}, periodSeconds: 10, timeoutSeconds: 5, failureThreshold: 6}
  {{- $memory := dict "limits" (dict "memory" (printf "%dMi" (add (mul (int .Values.kvcached.ramGib) 1024) 512))) }}
  resources: {{- mustMerge (deepCopy .Values.kvcached.resources) $memory | toYaml | nindent 4 }}
  securityContext: {{ include "cognitora.containerSecurity" . }}
  volumeMounts:
    {{- include "cognitora.mounts" (dict "root" . "file" "agent.toml" "token" (include "cognitora.inKubernetes" .)) | nindent 4 }}
    - {name: run, mountPath: /run/cognitora}
    - {name: state, mountPath: /var/lib/cognitora}
    {{- if .Values.kvcached.ssdGib }}
    - {name: kv, mountPath: /var/lib/cognitora/kv}
    {{- end }}
{{- end }}
