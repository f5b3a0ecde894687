/* SPDX-License-Identifier: Apache-2.0 */
/* reference: prints one page of docs/reference from the tables in the code. Run by scripts/gen-reference; not
 * installed. */
#include "joint/telemetry/telemetry.h"
#include "policy/config/config.h"

#define METRIC METRIC_ROW
static const struct metric_row router_rows[] = {
#include "router/metrics.def"
};
static const struct metric_row agent_rows[] = {
#include "agent/metrics.def"
};
static const struct metric_row kvcached_rows[] = {
#include "kvcached/metrics.def"
};

static void metrics_reference(struct cgn_buf *out)
{
	static const struct {
		const char *program;
		const struct metric_row *rows;
		size_t n;
	} tables[] = {{"cgn-router", router_rows, CGN_COUNT(router_rows)},
		{"cgn-agent", agent_rows, CGN_COUNT(agent_rows)},
		{"cgn-kvcached", kvcached_rows, CGN_COUNT(kvcached_rows)}};
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

int main(int argc, char **argv)
{
	static const struct {
		const char *page;
		void (*print)(struct cgn_buf *out);
	} pages[] = {{"configuration", config_reference}, {"metrics", metrics_reference}};
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf out = {0};
	for (size_t i = 0; argc == 2 && i < CGN_COUNT(pages); i++)
		if (strcmp(argv[1], pages[i].page) == 0)
			pages[i].print(&out);
	if (out.n == 0 || out.bad) {
		fprintf(stderr, "usage: %s configuration|metrics\n", argv[0]);
		return 2;
	}
	return fwrite(out.p, 1, out.n, stdout) == out.n && fflush(stdout) == 0 ? 0 : 1;
}
