/* SPDX-License-Identifier: Apache-2.0 */
/* recipe, inside: where recipes are. */
#pragma once
#include "ctl/ctl.h"

#define RECIPE_FILE_LIMIT ((size_t)1 << 20) /* bytes of a recipe's README or profile */

/* Write the folder of all recipes into |out|, which has PATH_MAX bytes: --recipes, $CGN_RECIPES, ./recipes, or the
 * one beside this program. CGN_NOT_FOUND. */
CGN_RC recipe_root(const struct ctl_args *a, char *out, struct cgn_err *err);
/* The same for the folder of one recipe. A name that leads out of the recipes' folder is CGN_NOT_FOUND. */
CGN_RC recipe_dir(const struct ctl_args *a, const char *name, char *out, struct cgn_err *err);
