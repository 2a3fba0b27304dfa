/*-------------------------------------------------------------------------
 *
 * settings.h
 *	  Settings for as long as something takes.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_SETTINGS_H
#define MIP_SETTINGS_H

/* Until the level of settings ends that has been begun last (NewGUCNestLevel). */
extern void mip_set_for_now(const char *name, const char *value);

#endif							/* MIP_SETTINGS_H */
