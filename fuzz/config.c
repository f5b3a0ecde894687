/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz config: any bytes as a TOML file, and also as text of the environment and of a flag; a configuration
 * that loads must print and load again. */
#include <stdlib.h>

#include "policy/config/config.h"
#include "policy/fleet/settings/settings.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static void print_and_reload(const struct config *c)
{
	struct cgn_buf text = {0};
	struct cgn_err err;
	struct config *again = NULL;
	config_print(c, &text);
	cgn_rc rc = settings_load("printed.toml", cgn_buf_view(&text), NULL, NULL, 0, &again, &err);
	CGN_MUST(cgn_ok(rc) || rc.code == CGN_TOO_LARGE);
	config_free(&again);
	cgn_buf_fini(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	struct config *c = NULL;
	struct cgn_err err;
	struct cgn_str text = {(const char *)p, n};
	if (cgn_ok(settings_load("fuzz.toml", text, NULL, NULL, 0, &c, &err)))
		print_and_reload(c);
	config_free(&c);
	struct cgn_buf env = {0};
	cgn_buf_putz(&env, "COGNITORA__");
	cgn_buf_str(&env, text);
	const char *vars[] = {cgn_buf_z(&env), NULL};
	const char *flag = vars[0] + strlen("COGNITORA__");
	if (cgn_ok(settings_load("fuzz.toml", CGN_STR(""), vars, NULL, 0, &c, &err)))
		print_and_reload(c);
	config_free(&c);
	if (cgn_ok(settings_load("fuzz.toml", CGN_STR(""), NULL, &flag, 1, &c, &err)))
		print_and_reload(c);
	config_free(&c);
	cgn_buf_fini(&env);
	return 0;
}
