/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/answer/tracing/tracing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mix/mix.h"

/* ---- the sampler ---- */

static const struct {
	const char *name;
	struct tracing_rules rules;
	bool takes_share;
} samplers[] = {
	{"always_on", {TRACING_ALL, false, 1}, false},
	{"always_off", {TRACING_NONE, false, 0}, false},
	{"traceidratio", {TRACING_SHARE, false, 1}, true},
	{"parentbased_always_on", {TRACING_ALL, true, 1}, false},
	{"parentbased_always_off", {TRACING_NONE, true, 0}, false},
	{"parentbased_traceidratio", {TRACING_SHARE, true, 1}, true},
};

static bool share_read(struct cgn_str text, double *out)
{
	char z[32], *end;
	if (!cgn_str_copyz(z, sizeof z, text))
		return false;
	*out = strtod(z, &end);
	return end != z && *end == '\0' && *out >= 0 && *out <= 1;
}

CGN_RC tracing_rules_read(struct cgn_str sampler, struct cgn_str arg, struct tracing_rules *out,
	struct cgn_err *err)
{
	const struct tracing_rules plain = {TRACING_SHARE, true, 0.01};
	bool takes_share = sampler.n == 0;
	*out = plain;
	for (size_t i = 0; i < CGN_COUNT(samplers); i++)
		if (cgn_str_is(sampler, samplers[i].name)) {
			*out = samplers[i].rules;
			takes_share = samplers[i].takes_share;
			sampler.n = 0;
		}
	if (sampler.n > 0)
		return CGN_FAIL(err, INVALID,
			"OTEL_TRACES_SAMPLER: there is no sampler \"%.*s\"; allowed are always_on, always_off, traceidratio, and these with parentbased_ before",
			CGN_STR_ARG(sampler));
	if (takes_share && arg.n > 0 && !share_read(arg, &out->share))
		return CGN_FAIL(err, INVALID,
			"OTEL_TRACES_SAMPLER_ARG: \"%.*s\" is not a share of the traces, a number from 0 to 1",
			CGN_STR_ARG(arg));
	return CGN_OK;
}

/* OpenTelemetry's TraceIdRatioBased: programs with the same share take the same traces. */
static bool share_has(double share, const uint8_t trace[TRACING_TRACE_BYTES])
{
	uint64_t x = 0;
	for (size_t i = 8; i < TRACING_TRACE_BYTES; i++)
		x = x << 8 | trace[i];
	return share >= 1 || (double)(x >> 1) < share * 0x1p63;
}

/* ---- the context ---- */

static bool hex_read(const char *p, size_t digits, uint64_t *out)
{
	*out = 0;
	for (size_t i = 0; i < digits; i++) {
		/* Upper case is not allowed there. */
		char c = p[i];
		if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f')))
			return false;
		*out = *out << 4 | (uint64_t)(c <= '9' ? c - '0' : c - 'a' + 10);
	}
	return true;
}

static void bytes_put(uint8_t *to, uint64_t v)
{
	for (size_t i = 0; i < 8; i++)
		to[i] = (uint8_t)(v >> (56 - 8 * i));
}

/* A later version may have more behind the flags, after a '-'. */
static bool parent_read(struct cgn_str s, struct tracing_context *out, bool *sampled)
{
	uint64_t version, high, low, parent, flags;
	if (s.n < TRACING_PARENT_TEXT || s.p[2] != '-' || s.p[35] != '-' || s.p[52] != '-' ||
		!hex_read(s.p, 2, &version) || !hex_read(s.p + 3, 16, &high) ||
		!hex_read(s.p + 19, 16, &low) || !hex_read(s.p + 36, 16, &parent) ||
		!hex_read(s.p + 53, 2, &flags))
		return false;
	bool end = s.n == TRACING_PARENT_TEXT || (version > 0 && s.p[TRACING_PARENT_TEXT] == '-');
	if (version == 255 || !end || (high | low) == 0 || parent == 0)
		return false;
	bytes_put(out->trace, high);
	bytes_put(out->trace + 8, low);
	out->parent = parent;
	*sampled = (flags & 1) != 0;
	return true;
}

void tracing_begin(const struct tracing_rules *rules, struct cgn_str traceparent, const uint64_t random[3],
	struct tracing_context *out)
{
	bool wanted;
	*out = (struct tracing_context){.span = random[0] | 1};
	if (parent_read(cgn_str_trim(traceparent), out, &wanted)) {
		out->sampled = rules->parent_decides ? wanted
						     : rules->sampler == TRACING_ALL ||
				(rules->sampler == TRACING_SHARE && share_has(rules->share, out->trace));
		return;
	}
	bytes_put(out->trace, random[1]);
	bytes_put(out->trace + 8, random[2] | 1);
	out->sampled = rules->sampler == TRACING_ALL ||
		(rules->sampler == TRACING_SHARE && share_has(rules->share, out->trace));
}

uint64_t tracing_child(const struct tracing_context *c, unsigned n)
{
	uint64_t id = mix64(c->span + n);
	return id != 0 ? id : 1;
}

void tracing_parent_write(const struct tracing_context *c, uint64_t span, char out[TRACING_PARENT_TEXT + 1])
{
	char trace[2 * TRACING_TRACE_BYTES + 1];
	for (size_t i = 0; i < TRACING_TRACE_BYTES; i++)
		(void)snprintf(trace + 2 * i, 3, "%02x", c->trace[i]);
	(void)snprintf(out, TRACING_PARENT_TEXT + 1, "00-%s-%016llx-%02x", trace, (unsigned long long)span,
		c->sampled ? 1U : 0U);
}
