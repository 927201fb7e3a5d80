package pcs

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/openpcs/openpcs/internal/fleet"
)

// Limits of node lifecycle actions (published model).
const (
	maxScripts        = 20 // of a stage
	maxScriptName     = 64
	maxArguments      = 20 // of a script
	maxArgument       = 256
	maxScriptLocation = 1024
	maxS3Version      = 1024
	checksumLength    = 64 // SHA-256 in hexadecimal digits
)

var (
	scriptLocationPattern = regexp.MustCompile(`^(s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]/.+|https://([a-zA-Z0-9](?:[a-zA-Z0-9_-]{0,61}[a-zA-Z0-9])?\.)+[a-zA-Z]{2,63}(?::[0-9]{1,5})?(?:[/?#][^\s]*)?)$`)
	checksumPattern       = regexp.MustCompile(`^[a-fA-F0-9]{64}$`)
)

// lifecycle checks the scripts that nodes are to run.
func (c *check) lifecycle(in *LifecycleActions) {
	const field = "nodeLifecycleActions"
	if in == nil {
		return
	}
	if in.ScriptCachingPolicy != nil {
		c.enum(field+".scriptCachingPolicy", in.ScriptCachingPolicy, "CACHE_ONCE", "REFRESH_ON_REBOOT")
	}
	if in.Stages == nil {
		c.bad(field+".stages", required)
		return
	}
	c.scripts(field+".stages.nodeBootstrapped", in.Stages.NodeBootstrapped)
	c.scripts(field+".stages.nodeReady", in.Stages.NodeReady)
}

// scripts checks one stage. An empty object of stages is how a client clears
// them all; an empty list is none of the model's values.
func (c *check) scripts(field string, in []LifecycleScript) {
	if in != nil && (len(in) < 1 || len(in) > maxScripts) {
		c.bad(field, "has %d entries, 1 to %d are allowed", len(in), maxScripts)
	}
	names := map[string]bool{}
	for i, s := range in {
		at := fmt.Sprintf("%s[%d]", field, i)
		name := c.sized(at+".name", s.Name, 1, maxScriptName, fleet.ScriptName)
		if s.Name != nil && names[name] {
			c.bad(at+".name", "%s is the name of two scripts of the stage, and their logs would be one file", quote(name))
		}
		names[name] = true
		if s.ScriptSource == nil {
			c.bad(at+".scriptSource", required)
		} else {
			c.source(at+".scriptSource", *s.ScriptSource)
		}
		if len(s.Arguments) > maxArguments {
			c.bad(at+".arguments", "has %d entries, at most %d are allowed", len(s.Arguments), maxArguments)
		}
		for j, a := range s.Arguments {
			c.length(fmt.Sprintf("%s.arguments[%d]", at, j), a, 0, maxArgument)
		}
		if s.OnError != nil {
			c.enum(at+".onError", s.OnError, "TERMINATE", "STOP_SEQUENCE", "CONTINUE")
		}
		if s.ExecutionPolicy != nil {
			c.enum(at+".executionPolicy", s.ExecutionPolicy, "FIRST_BOOT_ONLY", "EVERY_BOOT")
		}
	}
}

func (c *check) source(at string, in ScriptSource) {
	location := c.need(at+".scriptLocation", in.ScriptLocation)
	if in.ScriptLocation != nil && c.length(at+".scriptLocation", location, 1, maxScriptLocation) && !scriptLocationPattern.MatchString(location) {
		c.bad(at+".scriptLocation", "%s is neither s3://BUCKET/KEY nor https://HOST/PATH, where HOST is a name with a dot in it", quote(location))
	}
	if in.S3VersionID != nil {
		c.length(at+".s3VersionId", *in.S3VersionID, 0, maxS3Version)
		if in.ScriptLocation != nil && !strings.HasPrefix(location, "s3://") {
			c.bad(at+".s3VersionId", "is only for a scriptLocation that begins with s3://")
		}
	}
	if in.Checksum != nil {
		c.sized(at+".checksum", in.Checksum, checksumLength, checksumLength, checksumPattern)
	}
}

// lifecycleIn takes scripts that were checked. Without any there is nothing to
// keep: {"stages": {}} is how a client takes them all away.
func lifecycleIn(in LifecycleActions) *fleet.LifecycleActions {
	out := &fleet.LifecycleActions{
		CachingPolicy: given(in.ScriptCachingPolicy),
		Stages: fleet.LifecycleStages{
			NodeBootstrapped: scriptsIn(in.Stages.NodeBootstrapped), NodeReady: scriptsIn(in.Stages.NodeReady),
		},
	}
	if len(out.Stages.NodeBootstrapped)+len(out.Stages.NodeReady) == 0 {
		return nil
	}
	return out
}

func scriptsIn(in []LifecycleScript) (out []fleet.LifecycleScript) {
	for _, s := range in {
		out = append(out, fleet.LifecycleScript{
			Name: *s.Name, Arguments: s.Arguments, OnError: given(s.OnError), ExecutionPolicy: given(s.ExecutionPolicy),
			Source: fleet.ScriptSource{
				Location: *s.ScriptSource.ScriptLocation, S3VersionID: given(s.ScriptSource.S3VersionID), Checksum: given(s.ScriptSource.Checksum),
			},
		})
	}
	return out
}

// lifecycleOut shows scripts as they were given: what was left out is left
// out.
func lifecycleOut(in *fleet.LifecycleActions) *LifecycleActions {
	if in == nil {
		return nil
	}
	return &LifecycleActions{
		ScriptCachingPolicy: optional(in.CachingPolicy),
		Stages: &LifecycleStages{
			NodeBootstrapped: scriptsOut(in.Stages.NodeBootstrapped), NodeReady: scriptsOut(in.Stages.NodeReady),
		},
	}
}

func scriptsOut(in []fleet.LifecycleScript) (out []LifecycleScript) {
	for _, s := range in {
		out = append(out, LifecycleScript{
			Name: &s.Name, Arguments: s.Arguments, OnError: optional(s.OnError), ExecutionPolicy: optional(s.ExecutionPolicy),
			ScriptSource: &ScriptSource{
				ScriptLocation: &s.Source.Location, S3VersionID: optional(s.Source.S3VersionID), Checksum: optional(s.Source.Checksum),
			},
		})
	}
	return out
}

// given is the text of an optional member, empty if it was left out.
func given(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// optional is given's inverse.
func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
