package pcs

import (
	"encoding/base64"
	"fmt"

	"github.com/openpcs/openpcs/internal/ec2"
	"github.com/openpcs/openpcs/internal/fleet"
)

// templateLaunch takes from a launch template what instances are started
// with. What PCS ignores of templates (instance type and profile, termination
// protection, ...) is left out; what openpcs has nothing for (disks, network
// cards, placement) has no effect on a container.
func templateLaunch(d ec2.LaunchTemplateData) (fleet.Launch, error) {
	l := fleet.Launch{ImageID: d.ImageID, KeyName: d.KeyName, SecurityGroups: d.SecurityGroupIDs}
	if len(d.SecurityGroups) > 0 {
		return l, fmt.Errorf("the launch template names security groups by name, which is not allowed: use their ids")
	}
	for _, nic := range d.NetworkInterfaces {
		if len(l.SecurityGroups) == 0 {
			l.SecurityGroups = nic.SecurityGroupIDs
		}
	}
	for _, spec := range d.TagSpecifications {
		if spec.ResourceType != "instance" {
			continue
		}
		l.Tags = map[string]string{}
		for _, t := range spec.Tags {
			l.Tags[t.Key] = t.Value
		}
	}
	if d.UserData != "" {
		data, err := base64.StdEncoding.DecodeString(d.UserData)
		if err != nil {
			return l, fmt.Errorf("the launch template's user data is not base64")
		}
		l.UserData = data
	}
	return l, nil
}
