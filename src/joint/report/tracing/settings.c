/* SPDX-License-Identifier: Apache-2.0 */
/* settings: the variables that OpenTelemetry's SDKs share. Those of traces come before those of all signals. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/codec/codec.h"
#include "joint/report/tracing/tracing_priv.h"

/* Return the variable's value; an empty one counts as not set. */
static const char *value_of(const char *name)
{
	const char *v = getenv(name);
	return v != NULL && v[0] != '\0' ? v : NULL;
}

/* OTEL_EXPORTER_OTLP_TRACES_X before OTEL_EXPORTER_OTLP_X; |*name| is the one that is set. */
static const char *exporter_value(const char *traces, const char *all, const char **name)
{
	const char *v = value_of(traces);
	*name = v != NULL ? traces : all;
	return v != NULL ? v : value_of(all);
}

static CGN_RC number_read(const char *name, uint64_t least, uint64_t most, uint64_t *out, struct cgn_err *err)
{
	const char *v = value_of(name);
	if (v == NULL)
		return CGN_OK;
	if (!cgn_str_u64(cgn_str_of(v), out) || *out < least || *out > most)
		return CGN_FAIL(err, INVALID, "%s: \"%s\" is not a number from %llu to %llu", name, v,
			(unsigned long long)least, (unsigned long long)most);
	return CGN_OK;
}

static CGN_RC milliseconds_read(const char *name, cgn_nsec *out, struct cgn_err *err)
{
	uint64_t ms = *out / CGN_MSEC;
	CGN_TRY(number_read(name, 1, 600000, &ms, err));
	*out = ms * CGN_MSEC;
	return CGN_OK;
}

bool tracing_list_each(const char *list, struct cgn_arena *a,
	bool (*take)(void *user, struct cgn_str key, struct cgn_str value), void *user)
{
	struct cgn_str rest = cgn_str_of(list);
	while (rest.n > 0) {
		struct cgn_str value = cgn_str_trim(cgn_str_split(&rest, ',')), key;
		if (value.n == 0)
			continue;
		key = cgn_str_trim(cgn_str_split(&value, '='));
		if (key.n == 0 || value.p == NULL)
			return false;
		value = cgn_str_trim(value);
		char *plain = cgn_arena_get(a, value.n + 1);
		if (plain == NULL || !take(user, key, (struct cgn_str){plain, percent_get(plain, value)}))
			return false;
	}
	return true;
}

static bool header_is_plain(struct cgn_str s, bool is_name)
{
	for (size_t i = 0; i < s.n; i++) {
		unsigned char c = (unsigned char)s.p[i];
		if (c < ' ' || c == 127 || (is_name && (c <= ' ' || c == ':')))
			return false;
	}
	return true;
}

static bool header_take(void *user, struct cgn_str key, struct cgn_str value)
{
	struct tracing_settings *s = user;
	char *name = cgn_arena_strz(&s->arena, key);
	if (name == NULL || s->n_headers == TRACING_HEADERS || !header_is_plain(key, true) ||
		!header_is_plain(value, false))
		return false;
	for (char *c = name; *c != '\0'; c++)
		if (*c >= 'A' && *c <= 'Z')
			*c = (char)(*c - 'A' + 'a');
	s->headers[s->n_headers++] = (struct http_field){{name, key.n}, value};
	return true;
}

static CGN_RC headers_read(struct tracing_settings *s, struct cgn_err *err)
{
	const char *name,
		*v = exporter_value("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS", &name);
	if (v != NULL && !tracing_list_each(v, &s->arena, header_take, s))
		return CGN_FAIL(err, INVALID, "%s: it is a list key=value,key=value of at most %d fields",
			name, TRACING_HEADERS);
	return CGN_OK;
}

static CGN_RC protocol_read(struct tracing_settings *s, struct cgn_err *err)
{
	const char *name,
		*v = exporter_value("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL",
			&name);
	s->grpc = v != NULL && strcmp(v, "grpc") == 0;
	if (v != NULL && !s->grpc && strcmp(v, "http/protobuf") != 0)
		return CGN_FAIL(err, INVALID, "%s: \"%s\" is not spoken; allowed are http/protobuf and grpc",
			name, v);
	v = exporter_value("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "OTEL_EXPORTER_OTLP_COMPRESSION", &name);
	if (v != NULL && strcmp(v, "none") != 0)
		return CGN_FAIL(err, INVALID, "%s: \"%s\" is not spoken; allowed is none", name, v);
	return CGN_OK;
}

/* The endpoint of all signals gets the path of traces behind it; that of traces is used as it is. */
static CGN_RC endpoint_read(struct tracing_settings *s, struct cgn_err *err)
{
	const char *own = value_of("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT");
	const char *all = value_of("OTEL_EXPORTER_OTLP_ENDPOINT"), *v = own != NULL ? own : all;
	size_t n = v != NULL ? strlen(v) : 0;
	const char *path = own != NULL || s->grpc ? ""
		: v != NULL && v[n - 1] == '/'    ? "v1/traces"
						  : "/v1/traces";
	if (v == NULL)
		return CGN_OK;
	size_t scheme = strncmp(v, "http://", 7) == 0 ? 7 : strncmp(v, "https://", 8) == 0 ? 8 : 0;
	if (scheme == 0 || v[scheme] == '\0' || v[scheme] == '/')
		return CGN_FAIL(err, INVALID,
			"%s: \"%s\" is not of the form http://host:port or https://host:port",
			own != NULL ? "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT" : "OTEL_EXPORTER_OTLP_ENDPOINT",
			v);
	if ((size_t)snprintf(s->url, sizeof s->url, "%s%s", v, path) >= sizeof s->url)
		return CGN_FAIL(err, INVALID, "OTEL_EXPORTER_OTLP_ENDPOINT: longer than %zu bytes",
			sizeof s->url);
	s->on = true;
	return CGN_OK;
}

CGN_RC tracing_settings_read(const char *service, struct tracing_settings *s, struct cgn_err *err)
{
	const char *name, *sdk = value_of("OTEL_SDK_DISABLED"), *exporter = value_of("OTEL_TRACES_EXPORTER");
	const char *sampler = value_of("OTEL_TRACES_SAMPLER"), *arg = value_of("OTEL_TRACES_SAMPLER_ARG");
	const char *called = value_of("OTEL_SERVICE_NAME");
	*s = (struct tracing_settings){.timeout = 10 * CGN_SEC,
		.delay = 5 * CGN_SEC,
		.queue = 2048,
		.batch = 512};
	cgn_arena_init(&s->arena, 64 * 1024);
	if (exporter != NULL && strcmp(exporter, "otlp") != 0 && strcmp(exporter, "none") != 0)
		return CGN_FAIL(err, INVALID,
			"OTEL_TRACES_EXPORTER: \"%s\" is not spoken; allowed are otlp and none", exporter);
	CGN_TRY(protocol_read(s, err));
	CGN_TRY(endpoint_read(s, err));
	s->on = s->on && (sdk == NULL || strcasecmp(sdk, "true") != 0) &&
		(exporter == NULL || strcmp(exporter, "none") != 0);
	CGN_TRY(headers_read(s, err));
	CGN_TRY(tracing_rules_read(cgn_str_of(sampler), cgn_str_of(arg), &s->rules, err));
	CGN_TRY(milliseconds_read("OTEL_EXPORTER_OTLP_TIMEOUT", &s->timeout, err));
	CGN_TRY(milliseconds_read("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", &s->timeout, err));
	CGN_TRY(milliseconds_read("OTEL_BSP_SCHEDULE_DELAY", &s->delay, err));
	CGN_TRY(number_read("OTEL_BSP_MAX_QUEUE_SIZE", 1, 1000000, &s->queue, err));
	CGN_TRY(number_read("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 1, 1000000, &s->batch, err));
	s->ca_file = exporter_value("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "OTEL_EXPORTER_OTLP_CERTIFICATE",
		&name);
	s->resource = value_of("OTEL_RESOURCE_ATTRIBUTES");
	(void)snprintf(s->service, sizeof s->service, "%s", called != NULL ? called : service);
	return CGN_OK;
}
