/* SPDX-License-Identifier: Apache-2.0 */
/* settings: the configuration file, the files that it names, what runs of it, and the environment. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ctl/doctor/doctor.h"
#include "ctl/run.h"

#define CHECK_TIMEOUT (20 * CGN_SEC)
#define SHOWN_KEYS    8

void check_settings(struct doctor *d)
{
	if (d->cfg == NULL) {
		doctor_find(d, DOCTOR_PROBLEM, "%s", d->trouble.msg);
		doctor_do(d, "correct it, then: cgn-ctl config check %s", d->path != NULL ? d->path : "FILE");
	} else if (d->path == NULL) {
		doctor_find(d, DOCTOR_WARNING,
			"there is no /etc/cognitora/cognitora.toml: all settings have their defaults");
		doctor_do(d, "cgn-ctl install single-node --apply, or name the file with --config");
	} else
		doctor_find(d, DOCTOR_OK, "%s is valid", d->path);
}

/* Find the lines "PROGRAM: PROBLEM" in the output of --check. */
static void files_report(struct doctor *d, const struct doctor_program *p, struct cgn_str text)
{
	size_t n = strlen(p->name);
	for (struct cgn_str rest = text; rest.p != NULL;) {
		struct cgn_str line = cgn_str_split(&rest, '\n');
		if (!cgn_str_starts(line, p->name) || line.n < n + 2 || line.p[n] != ':')
			continue;
		doctor_find(d, DOCTOR_PROBLEM, "%.*s", CGN_STR_ARG(line));
		doctor_do(d, "correct the file or the key, then: %s --check --config %s", p->name, d->path);
	}
}

/* Credentials of units are there only while a unit runs. */
static bool credentials_are_missing(const struct config *c)
{
	const char *key = c->security.key_file;
	return key != NULL && strncmp(key, "/run/credentials/", 17) == 0 && access(key, F_OK) != 0;
}

void check_files(struct doctor *d)
{
	size_t asked = 0;
	if (credentials_are_missing(d->cfg)) {
		doctor_find(d, DOCTOR_SKIPPED,
			"the units' credentials are there only while a unit runs, and for root");
		return;
	}
	for (size_t i = 0; d->path != NULL && i < DOCTOR_PROGRAMS; i++) {
		CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf out = {0};
		const struct doctor_program *p = &d->programs[i];
		const char *const argv[] = {p->binary, "--check", "--config", d->path, NULL};
		if (!p->meant || p->binary[0] == '\0')
			continue;
		asked++;
		size_t before = d->n;
		int status = ctl_run_read(argv, CHECK_TIMEOUT, &out);
		if (status != 0)
			files_report(d, p, cgn_buf_view(&out));
		if (status != 0 && d->n == before) {
			doctor_find(d, DOCTOR_PROBLEM, "%s --check ended with status %d", p->binary, status);
			doctor_do(d, "%s --check --config %s", p->binary, d->path);
		}
	}
	if (asked == 0)
		doctor_find(d, DOCTOR_SKIPPED, "no program of this machine was found, or there is no file");
	else if (doctor_is_fine(d))
		doctor_find(d, DOCTOR_OK, "the programs can read all their files");
}

/* ---- running programs ---- */

static bool setting_find(struct json_val settings, struct json_iter *near, struct json_val key,
	struct json_val *out)
{
	struct json_val elem, k;
	/* Both lists have the same order, unless a row is missing in one. */
	if (json_next_elem(near, &elem) && json_get(elem, "key", &k) && cgn_str_eq(k.raw, key.raw))
		return json_get(elem, "value", out);
	struct json_iter it = json_iter_of(settings);
	while (json_next_elem(&it, &elem))
		if (json_get(elem, "key", &k) && cgn_str_eq(k.raw, key.raw)) {
			*near = it;
			return json_get(elem, "value", out);
		}
	return false;
}

/* Flags and environment of the program are not in the file, and a unit's credentials have paths of their own. */
static bool setting_is_own(struct json_val row, struct json_val value)
{
	struct json_val origin;
	return !json_get(row, "origin", &origin) || cgn_str_starts(origin.raw, "\"--") ||
		cgn_str_starts(origin.raw, "\"COGNITORA__") ||
		cgn_str_starts(value.raw, "\"/run/credentials/");
}

/* List the keys of |running| whose values differ from those of |file|. */
static size_t settings_differ(struct json_val running, struct json_val file, struct cgn_buf *out)
{
	struct json_val row, key, value, wanted;
	struct json_iter it = json_iter_of(running), near = json_iter_of(file);
	size_t n = 0;
	while (json_next_elem(&it, &row)) {
		if (!json_get(row, "key", &key) || !json_get(row, "value", &value))
			continue;
		if (!setting_find(file, &near, key, &wanted) || cgn_str_eq(value.raw, wanted.raw) ||
			setting_is_own(row, value))
			continue;
		if (n++ < SHOWN_KEYS)
			cgn_buf_fmt(out, "%s%.*s is %.*s, the file has %.*s", n > 1 ? "; " : "",
				(int)key.raw.n - 2, key.raw.p + 1, CGN_STR_ARG(value.raw),
				CGN_STR_ARG(wanted.raw));
	}
	return n;
}

static void applied_compare(struct doctor *d, const struct doctor_program *p, struct json_val file)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf keys = {0};
	struct json_val doc, running;
	if (!cgn_ok(json_parse(cgn_buf_view(&p->config->text), &doc, NULL, NULL)) ||
		!json_get(doc, "settings", &running))
		return;
	size_t n = settings_differ(running, file, &keys);
	if (n == 0)
		return;
	doctor_find(d, DOCTOR_WARNING, "%s runs with %zu other values: %s", p->name, n, cgn_buf_z(&keys));
	doctor_do(d, "systemctl reload %s, and restart it if its log says that a key needs that", p->name);
}

void check_applied(struct doctor *d)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	struct json_val doc, file;
	size_t asked = 0;
	config_json_running(d->cfg, d->cfg, &text);
	if (!cgn_ok(json_parse(cgn_buf_view(&text), &doc, NULL, NULL)) || !json_get(doc, "settings", &file))
		return;
	for (size_t i = 0; i < DOCTOR_PROGRAMS; i++) {
		const struct doctor_program *p = &d->programs[i];
		if (!p->meant || !p->answers || p->config == NULL || p->config->status != 200)
			continue;
		asked++;
		applied_compare(d, p, file);
	}
	if (asked == 0)
		doctor_find(d, DOCTOR_SKIPPED, "no program shows its settings: $CGN_API_KEY may be needed");
	else if (doctor_is_fine(d))
		doctor_find(d, DOCTOR_OK, "the programs run with the settings of the file");
}

/* ---- the environment ---- */

void check_proxy(struct doctor *d)
{
	static const char *const names[] = {"http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"};
	const char *except = getenv("no_proxy") != NULL ? getenv("no_proxy") : getenv("NO_PROXY");
	for (size_t i = 0; i < CGN_COUNT(names); i++) {
		const char *proxy = getenv(names[i]);
		if (proxy == NULL || *proxy == '\0')
			continue;
		if (except != NULL &&
			(strchr(except, '*') != NULL ||
				(strstr(except, "127.0.0.1") != NULL && strstr(except, "localhost") != NULL)))
			continue;
		doctor_find(d, DOCTOR_WARNING,
			"%s is set, so that curl and SDKs send requests for 127.0.0.1 to the proxy",
			names[i]);
		doctor_do(d, "export no_proxy=localhost,127.0.0.1,::1");
		return;
	}
	doctor_find(d, DOCTOR_OK, "no proxy takes requests for this machine");
}
