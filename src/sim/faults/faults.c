/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/faults/faults.h"

#include <stdlib.h>

#include "base/mix/mix.h"

enum fault_arg { ARG_NONE, ARG_TOKENS, ARG_STATUS, ARG_TIME };
enum fault_scope { SCOPE_REQUEST, SCOPE_PROCESS, SCOPE_BATCH, SCOPE_REPLAY };

static const struct fault_row {
	const char *name;
	enum fault_arg arg;
	enum fault_scope scope;
} rows[SIM_FAULT_COUNT] = {
#define FAULT(id, name, arg, scope, help) {name, ARG_##arg, SCOPE_##scope},
#include "sim/faults/faults.def"
#undef FAULT
};

/* Parse "250ms", "5s", "2m"; a bare number means seconds. */
static bool parse_time(struct cgn_str s, uint64_t *ns)
{
	static const struct {
		const char *unit;
		cgn_nsec ns;
	} units[] = {{"ms", CGN_MSEC}, {"us", CGN_USEC}, {"s", CGN_SEC}, {"m", 60 * CGN_SEC}, {"", CGN_SEC}};
	size_t digits = 0;
	while (digits < s.n && s.p[digits] >= '0' && s.p[digits] <= '9')
		digits++;
	uint64_t v = 0;
	if (!cgn_str_u64((struct cgn_str){s.p, digits}, &v) || v > 1000000)
		return false;
	for (size_t i = 0; i < CGN_COUNT(units); i++) {
		if (cgn_str_is((struct cgn_str){s.p + digits, s.n - digits}, units[i].unit)) {
			*ns = v * units[i].ns;
			return true;
		}
	}
	return false;
}

static CGN_RC parse_arg(struct cgn_str arg, struct sim_fault *out, struct cgn_err *err)
{
	const struct fault_row *row = &rows[out->kind];
	switch (row->arg) {
	case ARG_NONE:
		if (arg.n > 0)
			return CGN_FAIL(err, INVALID, "fault %s takes no argument", row->name);
		return CGN_OK;
	case ARG_TOKENS:
		if (!cgn_str_u64(arg, &out->arg) || out->arg > 1U << 30)
			return CGN_FAIL(err, INVALID, "fault %s needs a number of tokens: %s=8", row->name,
				row->name);
		return CGN_OK;
	case ARG_STATUS:
		if (!cgn_str_u64(arg, &out->arg) || out->arg < 400 || out->arg > 599)
			return CGN_FAIL(err, INVALID, "fault http needs a status from 400 to 599: http500");
		return CGN_OK;
	case ARG_TIME:
		if (!parse_time(arg, &out->arg))
			return CGN_FAIL(err, INVALID, "fault %s needs a duration: %s=5s", row->name,
				row->name);
		return CGN_OK;
	}
	return CGN_OK;
}

static bool parse_chance(struct cgn_str s, double *out)
{
	char z[32];
	char *end = NULL;
	if (s.n == 0 || s.p[0] < '0' || s.p[0] > '9' || !cgn_str_copyz(z, sizeof z, s))
		return false;
	*out = strtod(z, &end);
	return *end == '\0' && *out >= 0 && *out <= 1;
}

static CGN_RC parse_when(struct cgn_str when, struct sim_fault *out, struct cgn_err *err)
{
	struct cgn_str n = when;
	struct cgn_str word = cgn_str_split(&n, '=');
	bool number = n.p != NULL && cgn_str_u64(n, &out->every) && out->every > 0;
	if (when.p == NULL || cgn_str_is(when, "always"))
		out->when = FAULT_ALWAYS;
	else if (number && cgn_str_is(word, "every"))
		out->when = FAULT_EVERY;
	else if (number && cgn_str_is(word, "after"))
		out->when = FAULT_AFTER;
	else if (number && cgn_str_is(word, "nth"))
		out->when = FAULT_NTH;
	else if (parse_chance(when, &out->chance))
		out->when = FAULT_CHANCE;
	else
		return CGN_FAIL(err, INVALID,
			"\"@%.*s\": use @0.25 (a share of them), @every=N, @after=N or @nth=N",
			CGN_STR_ARG(when));
	return CGN_OK;
}

static CGN_RC unknown_kind(struct cgn_str name, struct cgn_err *err)
{
	char known[320] = "";
	struct cgn_buf b = cgn_buf_over(known, sizeof known);
	for (size_t i = 0; i < SIM_FAULT_COUNT; i++)
		cgn_buf_fmt(&b, "%s%s", i > 0 ? ", " : "", rows[i].name);
	return CGN_FAIL(err, INVALID, "no fault is called \"%.*s\"; there are %s",
		(int)(name.n < 64 ? name.n : 64), name.p, cgn_buf_z(&b));
}

CGN_RC sim_fault_parse(struct cgn_str text, struct sim_fault *out, struct cgn_err *err)
{
	struct cgn_str when = text;
	struct cgn_str what = cgn_str_split(&when, '@');
	size_t name = 0; /* Length up to ':' or '='; "http500" has neither. */
	while (name < what.n && what.p[name] != ':' && what.p[name] != '=')
		name++;
	size_t arg = name < what.n ? name + 1 : name;
	if (cgn_str_starts(what, "http") && name == what.n)
		name = arg = 4;
	struct cgn_str kind = {what.p, name};
	for (size_t i = 0; i < SIM_FAULT_COUNT; i++) {
		if (!cgn_str_is(kind, rows[i].name))
			continue;
		*out = (struct sim_fault){.kind = (enum sim_fault_kind)i};
		CGN_TRY(parse_arg((struct cgn_str){what.p + arg, what.n - arg}, out, err));
		return parse_when(when, out, err);
	}
	return unknown_kind(kind, err);
}

static bool fault_strikes(struct sim_fault *f, uint64_t *rng)
{
	f->seen++;
	switch (f->when) {
	case FAULT_ALWAYS:
		return true;
	case FAULT_EVERY:
		return f->seen % f->every == 0;
	case FAULT_AFTER:
		return f->seen > f->every;
	case FAULT_NTH:
		return f->seen == f->every;
	case FAULT_CHANCE:
		*rng = mix_seeded(*rng);
		return (double)(*rng >> 11) * 0x1p-53 < f->chance;
	}
	return false;
}

static void fault_apply(const struct sim_fault *f, struct sim_verdict *out)
{
	switch (f->kind) {
	case SIM_FAULT_REFUSE:
		out->refuse = true;
		break;
	case SIM_FAULT_ERROR:
		out->status = 200;
		break;
	case SIM_FAULT_HTTP:
		out->status = (int)f->arg;
		break;
	case SIM_FAULT_DIE:
		out->die_after = f->arg;
		break;
	case SIM_FAULT_CUT:
		out->cut_after = f->arg;
		break;
	case SIM_FAULT_HANG:
		out->hang = true;
		break;
	case SIM_FAULT_STALL:
		out->stall_after = f->arg;
		break;
	case SIM_FAULT_TRUNCATE:
		out->truncate = true;
		break;
	case SIM_FAULT_UNCACHED:
		out->uncached = true;
		break;
	case SIM_FAULT_SLOW_START: /* Applies to the process, not to a request. */
	case SIM_FAULT_KV_LOSE:
	case SIM_FAULT_KV_DROP:
	case SIM_FAULT_KV_TWICE:
	case SIM_FAULT_KV_SWAP:
	case SIM_FAULT_KV_GARBAGE:
	case SIM_FAULT_KV_ALIEN:
	case SIM_FAULT_KV_SILENT:
	case SIM_FAULT_KV_RESTART:
	case SIM_FAULT_KV_DEAF:
	case SIM_FAULT_COUNT:
		break;
	}
}

void sim_faults_judge(struct sim_faults *f, struct sim_verdict *out)
{
	*out = (struct sim_verdict){.die_after = SIM_NEVER, .cut_after = SIM_NEVER, .stall_after = SIM_NEVER};
	for (unsigned i = 0; i < f->n; i++) {
		if (rows[f->list[i].kind].scope == SCOPE_REQUEST && fault_strikes(&f->list[i], &f->rng))
			fault_apply(&f->list[i], out);
	}
}

void sim_faults_judge_batch(struct sim_faults *f, struct sim_batch_verdict *out)
{
	bool struck[SIM_FAULT_COUNT] = {false};
	for (unsigned i = 0; i < f->n; i++) {
		if (rows[f->list[i].kind].scope == SCOPE_BATCH && fault_strikes(&f->list[i], &f->rng))
			struck[f->list[i].kind] = true;
	}
	*out = (struct sim_batch_verdict){
		.lose = struck[SIM_FAULT_KV_LOSE],
		.drop = struck[SIM_FAULT_KV_DROP],
		.twice = struck[SIM_FAULT_KV_TWICE],
		.swap = struck[SIM_FAULT_KV_SWAP],
		.garbage = struck[SIM_FAULT_KV_GARBAGE],
		.alien = struck[SIM_FAULT_KV_ALIEN],
		.silent = struck[SIM_FAULT_KV_SILENT],
		.restart = struck[SIM_FAULT_KV_RESTART],
	};
}

bool sim_faults_ignore_replay(struct sim_faults *f)
{
	bool deaf = false;
	for (unsigned i = 0; i < f->n; i++)
		deaf |= f->list[i].kind == SIM_FAULT_KV_DEAF && fault_strikes(&f->list[i], &f->rng);
	return deaf;
}

cgn_nsec sim_faults_slow_start(const struct sim_faults *f)
{
	cgn_nsec longest = 0;
	for (unsigned i = 0; i < f->n; i++) {
		if (f->list[i].kind == SIM_FAULT_SLOW_START && f->list[i].arg > longest)
			longest = f->list[i].arg;
	}
	return longest;
}

void sim_fault_print(const struct sim_fault *f, struct cgn_buf *out)
{
	cgn_buf_putz(out, rows[f->kind].name);
	if (rows[f->kind].arg == ARG_STATUS)
		cgn_buf_u64(out, f->arg);
	else if (rows[f->kind].arg == ARG_TOKENS)
		cgn_buf_fmt(out, "=%llu", (unsigned long long)f->arg);
	else if (rows[f->kind].arg == ARG_TIME)
		cgn_buf_fmt(out, "=%llums", (unsigned long long)(f->arg / CGN_MSEC));
	const char *word = f->when == FAULT_EVERY ? "every" : f->when == FAULT_AFTER ? "after" : "nth";
	if (f->when == FAULT_CHANCE)
		cgn_buf_fmt(out, "@%g", f->chance);
	else if (f->when != FAULT_ALWAYS)
		cgn_buf_fmt(out, "@%s=%llu", word, (unsigned long long)f->every);
}
