/* SPDX-License-Identifier: Apache-2.0 */
#include "lab/enginemodel/contents.h"

#include <stdlib.h>

struct em_salt *em_salt_ref(struct em_salt *s)
{
	if (s != NULL)
		s->refs++;
	return s;
}

void em_salt_unref(struct em_salt **take)
{
	struct em_salt *s = *take;
	*take = NULL;
	if (s != NULL && --s->refs == 0)
		free(s);
}

void em_contents_free(struct em_contents **take)
{
	struct em_contents *t = *take;
	*take = NULL;
	if (t == NULL)
		return;
	free(t->tokens);
	free(t->digests);
	free(t->names);
	free(t->images);
	em_salt_unref(&t->salt);
	free(t);
}
