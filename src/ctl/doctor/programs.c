/* SPDX-License-Identifier: Apache-2.0 */
/* programs: their ports, whether they run and are ready, their versions and units. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ctl/doctor/doctor.h"
#include "ctl/run.h"
#include "io/net/net/owner.h"

/* A port of a program. */
struct port {
	enum doctor_program_index program;
	const char *key, *addr;
};
#define MAX_PORTS 10

static size_t ports_find(const struct doctor *d, struct port out[MAX_PORTS])
{
	const struct config *c = d->cfg;
	const struct port all[] = {{ROUTER, "router.listen", c->router.listen},
		{ROUTER, "router.listen_grpc", c->router.listen_grpc},
		{ROUTER, "router.listen_admin", c->router.listen_admin},
		{ROUTER, "security.listen_join",
			c->security.ca_key_file != NULL ? c->security.listen_join : NULL},
		{AGENT, "agent.listen", c->agent.listen},
		{AGENT, "agent.listen_admin", c->agent.listen_admin}, {KVCACHED, "kv.listen", c->kv.listen},
		{KVCACHED, "kv.resp_listen", c->kv.resp_listen},
		{KVCACHED, "kv.listen_admin", c->kv.listen_admin},
		{METRICS, "metrics.listen", c->metrics.listen}};
	size_t n = 0;
	for (size_t i = 0; i < CGN_COUNT(all); i++)
		if (d->programs[all[i].program].meant && all[i].addr != NULL &&
			strchr(all[i].addr, ':') != NULL && strncmp(all[i].addr, "unix:", 5) != 0)
			out[n++] = all[i];
	return n;
}

static unsigned port_number(const struct port *p)
{
	return (unsigned)strtoul(strrchr(p->addr, ':') + 1, NULL, 10);
}

void check_ports(struct doctor *d)
{
	struct port ports[MAX_PORTS];
	size_t n = ports_find(d, ports);
	char who[100], wanted[40];
	for (size_t i = 0; i < n; i++) {
		const struct doctor_program *p = &d->programs[ports[i].program];
		for (size_t k = 0; k < i; k++)
			if (port_number(&ports[k]) == port_number(&ports[i])) {
				doctor_find(d, DOCTOR_PROBLEM, "%s and %s both have port %u", ports[k].key,
					ports[i].key, port_number(&ports[i]));
				doctor_do(d, "give %s another port", ports[i].key);
			}
		(void)snprintf(wanted, sizeof wanted, "(%s)", p->name);
		if (net_port_owner(port_number(&ports[i]), who, sizeof who) != NET_OWNER_OTHER ||
			p->answers || strstr(who, wanted) != NULL)
			continue;
		doctor_find(d, DOCTOR_PROBLEM, "%s %s of %s is taken by %s", ports[i].key, ports[i].addr,
			p->name, who[0] != '\0' ? who : "a process of another user");
		doctor_do(d, "stop that process, or set %s to another port", ports[i].key);
	}
	if (n == 0)
		doctor_find(d, DOCTOR_SKIPPED, "no program belongs to this machine");
	else if (doctor_is_fine(d))
		doctor_find(d, DOCTOR_OK, "no other program has one of their ports");
}

void check_running(struct doctor *d)
{
	size_t meant = 0, running = 0;
	for (size_t i = 0; i < DOCTOR_PROGRAMS; i++) {
		meant += d->programs[i].meant;
		running += d->programs[i].meant && d->programs[i].answers;
	}
	for (size_t i = 0; i < DOCTOR_PROGRAMS; i++) {
		const struct doctor_program *p = &d->programs[i];
		if (!p->meant || p->answers)
			continue;
		const char *why = p->version == NULL ? "its admin port is off"
			: p->version->status != 0    ? "another program answers there"
						     : p->version->why.msg;
		doctor_find(d, p->certain || running == 0 ? DOCTOR_PROBLEM : DOCTOR_WARNING,
			"%s does not answer at %s: %s", p->name, p->admin, why);
		doctor_do(d,
			p->certain || running == 0
				? "systemctl start %s; journalctl -u %s -n 50 says why it ended"
				: "systemctl start %s; or, if %s does not belong to this machine, name those that do with --program",
			p->name, p->name);
	}
	if (meant == 0) {
		doctor_find(d, DOCTOR_PROBLEM, "no program runs here, and no settings or units name one");
		doctor_do(d, "cgn-ctl install single-node --apply, or name the programs with --program");
	} else if (doctor_is_fine(d))
		doctor_find(d, DOCTOR_OK, "all programs run");
}

void check_ready(struct doctor *d)
{
	size_t ready = 0;
	for (size_t i = 0; i < DOCTOR_PROGRAMS; i++) {
		const struct doctor_program *p = &d->programs[i];
		CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
		struct json_val doc, why;
		if (!p->meant || !p->answers || p->ready == NULL)
			continue;
		ready += p->ready->status == 200;
		if (p->ready->status == 200)
			continue;
		if (cgn_ok(json_parse(cgn_buf_view(&p->ready->text), &doc, NULL, NULL)) &&
			json_get(doc, "why", &why) && why.type == JSON_STRING)
			json_str_to(why, &text);
		doctor_find(d, DOCTOR_PROBLEM, "%s is not ready: %s", p->name,
			text.n > 0 ? cgn_buf_z(&text) : "it does not say why");
		doctor_do(d,
			i == ROUTER ? "cgn-ctl cluster nodes -o wide shows the nodes' reasons"
				    : "journalctl -u %s -n 50",
			p->name);
	}
	if (!doctor_is_fine(d))
		return;
	if (ready > 0)
		doctor_find(d, DOCTOR_OK, "all programs that run are ready");
	else
		doctor_find(d, DOCTOR_SKIPPED, "no program runs");
}

/* ---- versions ---- */

static void version_compare(struct doctor *d, const char *what, struct cgn_str version)
{
	if (cgn_str_is(version, CGN_VERSION))
		return;
	doctor_find(d, DOCTOR_WARNING, "%s is of version %.*s, cgn-ctl of %s", what, CGN_STR_ARG(version),
		CGN_VERSION);
	doctor_do(d, "install one version of all programs, then restart those that run");
}

static size_t version_of_binary(struct doctor *d, const struct doctor_program *p)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf out = {0};
	const char *const argv[] = {p->binary, "--version", NULL};
	if (p->binary[0] == '\0' || ctl_run_read(argv, 5 * CGN_SEC, &out) != 0)
		return 0;
	struct cgn_str rest = cgn_buf_view(&out), line = cgn_str_split(&rest, '\n');
	(void)cgn_str_split(&line, ' ');
	version_compare(d, p->binary, cgn_str_trim(line));
	return 1;
}

static size_t version_of_running(struct doctor *d, const struct doctor_program *p)
{
	struct json_val doc;
	if (!p->answers || !cgn_ok(json_parse(cgn_buf_view(&p->version->text), &doc, NULL, NULL)))
		return 0;
	struct cgn_str version = json_get_str(doc, "version", &d->arena);
	if (version.n == 0)
		return 0;
	char what[80];
	(void)snprintf(what, sizeof what, "the %s that runs", p->name);
	version_compare(d, what, version);
	return 1;
}

void check_versions(struct doctor *d)
{
	size_t compared = 0;
	for (size_t i = 0; i < DOCTOR_PROGRAMS; i++)
		compared += version_of_binary(d, &d->programs[i]) + version_of_running(d, &d->programs[i]);
	if (compared == 0)
		doctor_find(d, DOCTOR_SKIPPED, "no program was found");
	else if (doctor_is_fine(d))
		doctor_find(d, DOCTOR_OK, "all are %s", CGN_VERSION);
}

/* ---- units ---- */

static void unit_look(struct doctor *d, const struct doctor_program *p)
{
	bool enabled = strcmp(p->file_state, "enabled") == 0, active = strcmp(p->active, "active") == 0;
	if (strcmp(p->active, "failed") == 0) {
		doctor_find(d, DOCTOR_PROBLEM, "%s.service has failed (%s)", p->name, p->why);
		doctor_do(d, "journalctl -u %s -n 50, then systemctl restart %s", p->name, p->name);
	} else if (enabled && !active) {
		doctor_find(d, DOCTOR_PROBLEM, "%s.service is enabled and %s", p->name, p->active);
		doctor_do(d, "systemctl start %s", p->name);
	} else if (active && !enabled) {
		doctor_find(d, DOCTOR_WARNING,
			"%s.service runs and is not enabled: it does not start at boot", p->name);
		doctor_do(d, "systemctl enable %s", p->name);
	}
}

/* Is there the unit that runs the engine? */
static void engine_unit_look(struct doctor *d, const struct config_engine *e)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf out = {0};
	if (e->systemd_unit == NULL ||
		!doctor_systemctl(d, &e->systemd_unit, 1, "--property=LoadState", &out) ||
		strstr(cgn_buf_z(&out), "not-found") == NULL)
		return;
	doctor_find(d, DOCTOR_PROBLEM, "there is no unit %s (engine.systemd_unit of %s)", e->systemd_unit,
		e->name);
	doctor_do(d, "name the unit that runs the engine: systemctl list-units --type=service");
}

void check_units(struct doctor *d)
{
	size_t loaded = 0;
	if (!d->units) {
		doctor_find(d, DOCTOR_SKIPPED, "systemd does not run here");
		return;
	}
	for (size_t i = 0; i < DOCTOR_PROGRAMS; i++)
		if (strcmp(d->programs[i].load, "loaded") == 0) {
			loaded++;
			unit_look(d, &d->programs[i]);
		}
	for (size_t i = 0; d->cfg != NULL && d->programs[AGENT].meant && i < d->cfg->n_engines; i++)
		engine_unit_look(d, &d->cfg->engines[i]);
	if (!doctor_is_fine(d))
		return;
	if (loaded > 0)
		doctor_find(d, DOCTOR_OK, "the units are as they should be");
	else
		doctor_find(d, DOCTOR_SKIPPED, "no unit of ours is installed");
}
