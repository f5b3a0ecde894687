/* SPDX-License-Identifier: Apache-2.0 */
/* reference: prints one page of docs/reference from the tables in the code. Run by scripts/gen-reference; not
 * installed. */
#include "joint/telemetry/telemetry.h"
#include "policy/config/config.h"

int main(int argc, char **argv)
{
	static const struct {
		const char *page;
		void (*print)(struct cgn_buf *out);
	} pages[] = {{"configuration", config_reference}, {"metrics", telemetry_reference}};
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
