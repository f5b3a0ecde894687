/* SPDX-License-Identifier: Apache-2.0 */
/* bundle: the files of deploy/ that cgn-ctl has in itself. */
#include <string.h>

#include "ctl/install/install.h"

#pragma GCC diagnostic ignored "-Woverlength-strings" /* A file is one string. */
static const struct install_source sources[] = {
#define EMBEDDED(name, text) {(name), (text)},
#include "ctl/deploy_files.h"
#undef EMBEDDED
};

const struct install_source *install_source_next(const char *folder, const struct install_source *before)
{
	for (size_t i = before == NULL ? 0 : (size_t)(before - sources) + 1; i < CGN_COUNT(sources); i++)
		if (strncmp(sources[i].name, folder, strlen(folder)) == 0)
			return &sources[i];
	return NULL;
}

const char *install_source_text(const char *name)
{
	const struct install_source *f = install_source_next(name, NULL);
	CGN_MUST(f != NULL && strcmp(f->name, name) == 0);
	return f->text;
}
