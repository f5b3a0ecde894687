/* SPDX-License-Identifier: Apache-2.0 */
/* doctor: the verb: runs the checks and shows their findings. */
#include "ctl/doctor/doctor.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "joint/ctl/line/progress.h"

#define ARENA_LIMIT ((size_t)16 << 20)

static const struct doctor_check checks[] = {
#define CHECK(name, run, any, summary) {name, run, any, summary},
#include "ctl/doctor/checks.def"
#undef CHECK
};

static const char *const result_texts[] = {"ok", "skipped", "warning", "problem"};

__attribute__((format(printf, 2, 0))) static const char *finding_text(struct doctor *d, const char *fmt,
	va_list ap)
{
	char text[1200];
	(void)vsnprintf(text, sizeof text, fmt, ap);
	for (char *c = text; *c != '\0'; c++) /* A finding is one line. */
		*c = *c == '\n' ? ' ' : *c;
	const char *kept = cgn_arena_strz(&d->arena, cgn_str_of(text));
	return kept != NULL ? kept : "(out of memory)";
}

void doctor_find(struct doctor *d, enum doctor_result result, const char *fmt, ...)
{
	va_list ap;
	if (d->n == DOCTOR_MAX_FINDINGS) {
		d->lost++;
		return;
	}
	va_start(ap, fmt);
	d->findings[d->n++] = (struct doctor_finding){d->now, result, finding_text(d, fmt, ap), NULL};
	va_end(ap);
}

void doctor_do(struct doctor *d, const char *fmt, ...)
{
	va_list ap;
	if (d->n == 0 || d->lost > 0)
		return;
	va_start(ap, fmt);
	d->findings[d->n - 1].todo = finding_text(d, fmt, ap);
	va_end(ap);
}

bool doctor_is_fine(const struct doctor *d)
{
	for (size_t i = d->n; i-- > 0 && d->findings[i].check == d->now;)
		if (d->findings[i].result >= DOCTOR_WARNING)
			return false;
	return true;
}

/* ---- selection ---- */

static bool check_wanted(const struct ctl_args *a, const struct doctor_check *c)
{
	const char *name;
	for (size_t i = 0; (name = ctl_flag_nth(a, "--only", i)) != NULL; i++)
		if (strcmp(name, c->name) == 0)
			return true;
	return ctl_flag(a, "--only") == NULL;
}

static CGN_RC names_check(const struct ctl_args *a, struct cgn_err *err)
{
	static const char *const programs[] = {"cgn-router", "cgn-agent", "cgn-kvcached", "cgn-metrics"};
	const char *name;
	for (size_t i = 0; (name = ctl_flag_nth(a, "--only", i)) != NULL; i++) {
		bool known = false;
		for (size_t k = 0; k < CGN_COUNT(checks); k++)
			known = known || strcmp(name, checks[k].name) == 0;
		if (!known)
			return CGN_FAIL(err, INVALID,
				"there is no check '%.80s'; cgn-ctl doctor --list shows all", name);
	}
	for (size_t i = 0; (name = ctl_flag_nth(a, "--program", i)) != NULL; i++) {
		bool known = false;
		for (size_t k = 0; k < CGN_COUNT(programs); k++)
			known = known || strcmp(name, programs[k]) == 0 || strcmp(name, programs[k] + 4) == 0;
		if (!known)
			return CGN_FAIL(err, INVALID,
				"--program takes router, agent, kvcached or metrics, not '%.80s'", name);
	}
	return CGN_OK;
}

static CGN_RC checks_list(const struct ctl_args *a, struct cgn_err *err)
{
	struct ctl_table t = {0};
	for (size_t i = 0; i < CGN_COUNT(checks); i++) {
		CTL_CELL(&t, "CHECK", "%s", checks[i].name);
		CTL_CELL(&t, "FINDS", "%s", checks[i].summary);
	}
	return ctl_table_print(&t, a->json, err);
}

static void checks_run(struct doctor *d)
{
	for (size_t i = 0; i < CGN_COUNT(checks); i++) {
		d->now = &checks[i];
		if (!check_wanted(d->args, d->now))
			continue;
		ctl_progress("checking %s", d->now->name);
		size_t before = d->n;
		if (d->cfg == NULL && !d->now->any)
			doctor_find(d, DOCTOR_SKIPPED, "there are no valid settings");
		else
			d->now->run(d);
		if (d->n == before && d->lost == 0)
			doctor_find(d, DOCTOR_OK, "%s", "nothing to complain about");
	}
	ctl_progress_end();
}

/* ---- output ---- */

static size_t findings_of(const struct doctor *d, enum doctor_result result)
{
	size_t n = 0;
	for (size_t i = 0; i < d->n; i++)
		n += d->findings[i].result == result;
	return n;
}

static void findings_json(const struct doctor *d, struct cgn_buf *out)
{
	struct json_out o = json_out_to(out);
	json_open(&o, '{');
	json_key_z(&o, "config", d->path != NULL ? d->path : "");
	json_key_open(&o, "programs", '[');
	for (size_t i = 0; i < DOCTOR_PROGRAMS; i++)
		if (d->programs[i].meant)
			json_put_z(&o, d->programs[i].name);
	json_close(&o, ']');
	json_key_u64(&o, "problems", findings_of(d, DOCTOR_PROBLEM));
	json_key_u64(&o, "warnings", findings_of(d, DOCTOR_WARNING));
	json_key_u64(&o, "left_out", d->lost);
	json_key_open(&o, "findings", '[');
	for (size_t i = 0; i < d->n; i++) {
		const struct doctor_finding *f = &d->findings[i];
		json_open(&o, '{');
		json_key_z(&o, "check", f->check->name);
		json_key_z(&o, "result", result_texts[f->result]);
		json_key_z(&o, "seen", f->seen);
		json_key_z(&o, "do", f->todo != NULL ? f->todo : "");
		json_close(&o, '}');
	}
	json_close(&o, ']');
	json_close(&o, '}');
	cgn_buf_char(out, '\n');
}

static void findings_put(const struct doctor *d, enum doctor_result result, struct cgn_buf *out)
{
	for (size_t i = 0; i < d->n; i++) {
		const struct doctor_finding *f = &d->findings[i];
		if (f->result != result)
			continue;
		cgn_buf_fmt(out, "%-8s %-17s %s\n", result_texts[result], f->check->name, ctl_shown(f->seen));
		if (f->todo != NULL)
			cgn_buf_fmt(out, "%26s do: %s\n", "", ctl_shown(f->todo));
	}
}

static void findings_text(const struct doctor *d, struct cgn_buf *out)
{
	const char *lead = "";
	cgn_buf_fmt(out, "settings %s\nprograms ", d->path != NULL ? ctl_shown(d->path) : "none: defaults");
	for (size_t i = 0; i < DOCTOR_PROGRAMS; i++)
		if (d->programs[i].meant) {
			cgn_buf_fmt(out, "%s%s", lead, d->programs[i].name);
			lead = ", ";
		}
	cgn_buf_fmt(out, "%s\n\n", lead[0] == '\0' ? "none" : "");
	findings_put(d, DOCTOR_PROBLEM, out);
	findings_put(d, DOCTOR_WARNING, out);
	findings_put(d, DOCTOR_OK, out);
	if (d->args->wide)
		findings_put(d, DOCTOR_SKIPPED, out);
	if (d->lost > 0)
		cgn_buf_fmt(out, "%zu further findings are left out\n", d->lost);
	cgn_buf_fmt(out, "\nproblems %zu, warnings %zu, ok %zu, skipped %zu%s\n",
		findings_of(d, DOCTOR_PROBLEM), findings_of(d, DOCTOR_WARNING), findings_of(d, DOCTOR_OK),
		findings_of(d, DOCTOR_SKIPPED), d->args->wide ? "" : " (-o wide says why)");
}

static void doctor_free(struct doctor **take)
{
	struct doctor *d = CGN_TAKE(take);
	if (d == NULL)
		return;
	probes_fini(&d->probes);
	config_free(&d->cfg);
	cgn_arena_fini(&d->arena);
	free(d);
}

CGN_RC ctl_doctor(const struct ctl_args *a, struct cgn_err *err)
{
	struct cgn_buf out = {0};
	CGN_TRY(names_check(a, err));
	if (ctl_switch(a, "--list"))
		return checks_list(a, err);
	CGN_ON_EXIT(doctor_free) struct doctor *d = CGN_NEW(struct doctor);
	cgn_arena_init(&d->arena, ARENA_LIMIT);
	d->args = a;
	doctor_read_settings(d);
	CGN_TRY(doctor_gather(d, err));
	checks_run(d);
	(a->json ? findings_json : findings_text)(d, &out);
	CGN_TRY(ctl_print(&out, err));
	/* Exit status 1, without a further line. */
	return findings_of(d, DOCTOR_PROBLEM) + d->lost > 0 ? CGN_RC_OF(CGN_CONFLICT) : CGN_OK;
}
