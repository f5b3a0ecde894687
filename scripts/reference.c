/* SPDX-License-Identifier: Apache-2.0 */
/* reference: prints one page of docs/reference from the tables in the code. Run by scripts/gen-reference; not
 * installed. */
#include "joint/report/telemetry/telemetry.h"
#include "policy/config/config.h"
#include "policy/route/routing/routing.h"
#include "policy/who/identity/identity.h"

#define METRIC METRIC_ROW
static const struct metric_row router_rows[] = {
#include "router/metrics.def"
};
static const struct metric_row agent_rows[] = {
#include "agent/metrics.def"
};
static const struct metric_row kvcached_rows[] = {
#include "kvcached/daemon/metrics.def"
};

static const struct metric_row metrics_rows[] = {
#include "metrics/metrics.def"
};

static const struct metric_row operator_rows[] = {
#include "operator/metrics.def"
};

static void metrics_reference(struct cgn_buf *out)
{
	static const struct {
		const char *program;
		const struct metric_row *rows;
		size_t n;
	} tables[] = {{"cgn-router", router_rows, CGN_COUNT(router_rows)},
		{"cgn-agent", agent_rows, CGN_COUNT(agent_rows)},
		{"cgn-kvcached", kvcached_rows, CGN_COUNT(kvcached_rows)},
		{"cgn-metrics", metrics_rows, CGN_COUNT(metrics_rows)},
		{"cgn-operator", operator_rows, CGN_COUNT(operator_rows)}};
	cgn_buf_putz(out,
		"# Metrics\n\n"
		"Generated from each `src/**/metrics.def` by `scripts/gen-reference`; do not edit.\n\n"
		"Every program serves its metrics on its admin port at `/metrics`, in the Prometheus text format. A metric\n"
		"appears once it has a value. Histograms are in seconds. Each program also exports the usual `process_*`\n"
		"metrics.\n");
	for (size_t i = 0; i < CGN_COUNT(tables); i++) {
		cgn_buf_fmt(out, "\n## %s\n\n", tables[i].program);
		telemetry_reference(tables[i].rows, tables[i].n, out);
	}
	cgn_buf_putz(out, "\n## Several programs\n\n");
	telemetry_reference_joint(out);
}

/* ---- cgn-ctl ---- */

struct named {
	const char *name, *help;
};

static const struct {
	const char *path, *arguments, *summary, *examples;
} verbs[] = {
#define VERB(path, arguments, run, summary, examples) {path, arguments, summary, examples},
#define BENCH                                         VERB
#include "joint/ctl/line/verbs.def"
#undef VERB
#undef BENCH
};

static const struct {
	const char *verb, *name, *meta, *fallback, *help;
} flags[] = {
#define FLAG(verb, name, meta, fallback, help) {verb, name, meta, fallback, help},
#include "joint/ctl/line/flags.def"
#undef FLAG
};

static const struct named workloads[] = {
#define WORKLOAD(id, text, session_turns, begin, turn, pause, help) {text, help},
#include "lab/workload/workloads.def"
#undef WORKLOAD
};

static const struct named trials[] = {
#define TRIAL(id, text, ops, help) {text, help},
#include "lab/trial/trials.def"
#undef TRIAL
};

static const struct {
	int exit;
	const char *text;
} codes[] = {
#define CODE(name, http, grpc, exit, text) {exit, text},
#include "base/core/codes.def"
#undef CODE
};

/* Append |text| as the content of a table's cell. */
static void put_cell(struct cgn_buf *out, const char *text)
{
	for (; *text != '\0'; text++)
		cgn_buf_fmt(out, *text == '|' ? "\\%c" : "%c", *text);
}

static bool flag_fits(const char *prefix, const char *verb)
{
	size_t n = strlen(prefix);
	if (prefix[0] == '=')
		return strcmp(prefix + 1, verb) == 0;
	return strncmp(prefix, verb, n) == 0 && (verb[n] == '\0' || (n > 0 && verb[n] == ' '));
}

/* Append a table of the flags of |verb|, "" for those of every verb; nothing when it has none. */
static void put_flags(struct cgn_buf *out, const char *verb)
{
	bool any = false;
	for (size_t i = 0; i < CGN_COUNT(flags); i++) {
		bool fits = verb[0] == '\0' ? flags[i].verb[0] == '\0'
					    : flags[i].verb[0] != '\0' && flag_fits(flags[i].verb, verb);
		if (!fits)
			continue;
		cgn_buf_putz(out, any ? "" : "| flag | default | meaning |\n|---|---|---|\n");
		any = true;
		cgn_buf_fmt(out, "| `%s", flags[i].name);
		cgn_buf_putz(out, flags[i].meta != NULL ? " " : "");
		put_cell(out, flags[i].meta != NULL ? flags[i].meta : "");
		cgn_buf_putz(out, "` | ");
		if (flags[i].fallback != NULL && flags[i].fallback[0] != '\0')
			cgn_buf_fmt(out, "`%s`", flags[i].fallback);
		cgn_buf_putz(out, " | ");
		put_cell(out, flags[i].help);
		cgn_buf_putz(out, " |\n");
	}
	cgn_buf_putz(out, any ? "\n" : "");
}

static void put_named(struct cgn_buf *out, const char *title, const struct named *rows, size_t n)
{
	cgn_buf_fmt(out, "## %s\n\n| name | meaning |\n|---|---|\n", title);
	for (size_t i = 0; i < n; i++) {
		cgn_buf_fmt(out, "| `%s` | ", rows[i].name);
		put_cell(out, rows[i].help);
		cgn_buf_putz(out, " |\n");
	}
	cgn_buf_char(out, '\n');
}

static void put_exit_codes(struct cgn_buf *out)
{
	cgn_buf_putz(out, "## Exit codes\n\n| code | meaning |\n|---|---|\n");
	for (int exit = 0; exit <= 255; exit++) {
		const char *between = "";
		for (size_t i = 0; i < CGN_COUNT(codes); i++) {
			if (codes[i].exit != exit)
				continue;
			if (between[0] == '\0')
				cgn_buf_fmt(out, "| %d | ", exit);
			cgn_buf_fmt(out, "%s%s", between,
				exit == 3 ? "`config check`: the configuration is invalid" : codes[i].text);
			between = "; ";
		}
		cgn_buf_putz(out, between[0] != '\0' ? " |\n" : "");
		if (exit == 2)
			cgn_buf_putz(out, "| 2 | usage: an unknown verb or flag, or an invalid value |\n");
	}
}

static void ctl_reference(struct cgn_buf *out)
{
	cgn_buf_putz(out,
		"# cgn-ctl\n\n"
		"Generated from `src/joint/ctl/line/verbs.def` and `flags.def` there by `scripts/gen-reference`; do not edit.\n\n"
		"`cgn-ctl VERB --help` prints the same. `cgn-ctl completion` prints the completion for a shell.\n\n"
		"Flags of every verb:\n\n");
	put_flags(out, "");
	for (size_t i = 0; i < CGN_COUNT(verbs); i++) {
		cgn_buf_fmt(out, "## %s\n\n%s.\n\n```\ncgn-ctl %s%s%s [flags]\n```\n\n", verbs[i].path,
			verbs[i].summary, verbs[i].path, verbs[i].arguments[0] != '\0' ? " " : "",
			verbs[i].arguments);
		put_flags(out, verbs[i].path);
		cgn_buf_fmt(out, "Examples:\n\n```\n%s\n```\n\n", verbs[i].examples);
	}
	struct named policies[ROUTE_POLICIES + 1];
	char kv[64];
	(void)snprintf(kv, sizeof kv, "the default policy: %s", route_policy_text(ROUTE_KV));
	policies[0] = (struct named){"kv", kv};
	for (enum route_policy p = 0; p < ROUTE_POLICIES; p++)
		policies[p + 1] = (struct named){route_policy_text(p), route_policy_help(p)};
	put_named(out, "Routing policies", policies, CGN_COUNT(policies));
	put_named(out, "Eviction policies of bench evict", trials, CGN_COUNT(trials));
	put_named(out, "Workloads", workloads, CGN_COUNT(workloads));
	put_exit_codes(out);
}

/* Append the cell of who may give what: may the holder of role |g| and of node.invite invite to role |r|? */
static void gift_put(const struct identity_roles *t, size_t g, size_t r, struct cgn_buf *out)
{
	const struct principal p = {.kind = IDENTITY_CERT, .name = CGN_STR("n"), .roles = UINT64_C(1) << g};
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf missing = {0};
	if (identity_may_give(t, &p, UINT64_C(1) << r, &missing))
		cgn_buf_putz(out, " yes |");
	else
		cgn_buf_fmt(out, " lacks `%s` |", cgn_buf_z(&missing));
}

static void gifts_reference(struct cgn_buf *out)
{
	CGN_ON_EXIT(identity_roles_unref) struct identity_roles *t = NULL;
	struct cgn_err err;
	if (!cgn_ok(identity_roles_new(NULL, &t, &err)))
		return;
	cgn_buf_putz(out,
		"\n## Who may give what\n\n"
		"Whoever has `node.invite` invites machines that serve (`agent`, `kvcached`), and gives another role only with each\n"
		"permission of it, for the same objects or for more. A row is the role that the giver has beside `node.invite`, a column\n"
		"the role that is given; the cell names the first permission that is missing. A test walks each pair of these tables.\n\n|  |");
	for (size_t r = 0; identity_role_name(t, r) != NULL; r++)
		cgn_buf_fmt(out, " `%s` |", identity_role_name(t, r));
	cgn_buf_putz(out, "\n|---|");
	for (size_t r = 0; identity_role_name(t, r) != NULL; r++)
		cgn_buf_putz(out, "---|");
	for (size_t g = 0; identity_role_name(t, g) != NULL; g++) {
		cgn_buf_fmt(out, "\n| `%s` |", identity_role_name(t, g));
		for (size_t r = 0; identity_role_name(t, r) != NULL; r++)
			gift_put(t, g, r, out);
	}
	cgn_buf_char(out, '\n');
}

static void permissions_reference(struct cgn_buf *out)
{
	static const struct {
		const char *text, *help;
		bool own;
	} actions[] = {
#define ACTION(id, text, own, help) {text, help, own},
#include "policy/who/identity/actions.def"
#undef ACTION
	};
	static const struct {
		const char *name, *allow, *help;
	} roles[] = {
#define ROLE(id, name, allow, help) {name, allow, help},
#include "policy/who/identity/roles.def"
#undef ROLE
	};
	cgn_buf_putz(out,
		"# Permissions and roles\n\n"
		"Generated from the tables in `src/policy/who/identity/` by `scripts/gen-reference`; do not edit.\n\n"
		"A permission is an action, or an action with a pattern of objects: `model.use:llama-*`. `*`, `?` and `[a-z]` stand for\n"
		"any text, a character and a range, in actions too. Certificates, API keys and users have roles; `[roles.\"NAME\"]` in the\n"
		"configuration adds roles to these.\n\n"
		"## Actions\n\n| action | allows to |\n|---|---|\n");
	for (size_t i = 0; i < CGN_COUNT(actions); i++)
		cgn_buf_fmt(out, "| `%s` | %s%s |\n", actions[i].text, actions[i].help,
			actions[i].own ? "; a certificate may do it for its own node only" : "");
	cgn_buf_putz(out, "\n## Roles\n\n| role | permissions | for |\n|---|---|---|\n");
	for (size_t i = 0; i < CGN_COUNT(roles); i++)
		cgn_buf_fmt(out, "| `%s` | `%s` | %s |\n", roles[i].name, roles[i].allow, roles[i].help);
	gifts_reference(out);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *page;
		void (*print)(struct cgn_buf *out);
	} pages[] = {{"configuration", config_reference}, {"metrics", metrics_reference},
		{"cgn-ctl", ctl_reference}, {"permissions", permissions_reference}};
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf out = {0};
	for (size_t i = 0; argc == 2 && i < CGN_COUNT(pages); i++)
		if (strcmp(argv[1], pages[i].page) == 0)
			pages[i].print(&out);
	if (out.n == 0 || out.bad) {
		fprintf(stderr, "usage: %s configuration|metrics|cgn-ctl|permissions\n", argv[0]);
		return 2;
	}
	return fwrite(out.p, 1, out.n, stdout) == out.n && fflush(stdout) == 0 ? 0 : 1;
}
