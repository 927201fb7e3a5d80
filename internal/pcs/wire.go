// Package pcs is the PCS service: the wire types of its public API (version
// 2023-02-10), their constraints, and the operations. The operations change
// the state file and wake package control, which does the rest. The shapes
// are our own writing of the published model.
package pcs

import (
	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/slurm"
)

// Setting is one custom setting of Slurm, slurmdbd or cgroups.
type Setting struct {
	ParameterName  *string `json:"parameterName"`
	ParameterValue *string `json:"parameterValue"`
}

func settingsOut(in []slurm.Setting) (out []Setting) {
	for _, s := range in {
		out = append(out, Setting{&s.Name, &s.Value})
	}
	return out
}

// Scheduler names the scheduler and its release.
type Scheduler struct {
	Type    *string `json:"type"`
	Version *string `json:"version"`
}

// Networking says where the controller's endpoint is.
type Networking struct {
	SubnetIDs        []string `json:"subnetIds,omitempty"`
	SecurityGroupIDs []string `json:"securityGroupIds,omitempty"`
	NetworkType      *string  `json:"networkType,omitempty"`
}

// Accounting switches job accounting.
type Accounting struct {
	Mode                   *string `json:"mode,omitempty"`
	DefaultPurgeTimeInDays *int    `json:"defaultPurgeTimeInDays,omitempty"`
}

// SlurmRest switches slurmrestd.
type SlurmRest struct {
	Mode *string `json:"mode,omitempty"`
}

// SecretRef points to a version of a secret.
type SecretRef struct {
	SecretARN     string `json:"secretArn"`
	SecretVersion string `json:"secretVersion"`
}

// ClusterSlurm is the Slurm part of a cluster, in requests and answers.
type ClusterSlurm struct {
	ScaleDownIdleTimeInSeconds *int        `json:"scaleDownIdleTimeInSeconds,omitempty"`
	SlurmCustomSettings        []Setting   `json:"slurmCustomSettings,omitempty"`
	SlurmdbdCustomSettings     []Setting   `json:"slurmdbdCustomSettings,omitempty"`
	CgroupCustomSettings       []Setting   `json:"cgroupCustomSettings,omitempty"`
	Accounting                 *Accounting `json:"accounting,omitempty"`
	SlurmRest                  *SlurmRest  `json:"slurmRest,omitempty"`
}

// ClusterSlurmOut is ClusterSlurm with what only answers carry.
type ClusterSlurmOut struct {
	ClusterSlurm
	AuthKey *SecretRef `json:"authKey,omitempty"`
	JWTAuth *JWTAuth   `json:"jwtAuth,omitempty"`
}

// JWTAuth has the key that tokens for the REST API are signed with.
type JWTAuth struct {
	JWTKey *SecretRef `json:"jwtKey,omitempty"`
}

// Endpoint is where a daemon of the cluster listens.
type Endpoint struct {
	Type             string `json:"type"`
	PrivateIPAddress string `json:"privateIpAddress"`
	Port             string `json:"port"`
}

// ErrorInfo explains a failed status.
type ErrorInfo struct {
	Code    string `json:"code,omitempty"`
	Message string `json:"message,omitempty"`
}

// Cluster is a cluster as Create, Get and Update answer it.
type Cluster struct {
	Name               string           `json:"name"`
	ID                 string           `json:"id"`
	ARN                string           `json:"arn"`
	Status             string           `json:"status"`
	CreatedAt          awsapi.Time      `json:"createdAt"`
	ModifiedAt         awsapi.Time      `json:"modifiedAt"`
	Scheduler          Scheduler        `json:"scheduler"`
	Size               string           `json:"size"`
	SlurmConfiguration *ClusterSlurmOut `json:"slurmConfiguration,omitempty"`
	Networking         Networking       `json:"networking"`
	Endpoints          []Endpoint       `json:"endpoints,omitempty"`
	ErrorInfo          []ErrorInfo      `json:"errorInfo,omitempty"`
}

// ClusterSummary is a cluster in a list.
type ClusterSummary struct {
	Name       string      `json:"name"`
	ID         string      `json:"id"`
	ARN        string      `json:"arn"`
	CreatedAt  awsapi.Time `json:"createdAt"`
	ModifiedAt awsapi.Time `json:"modifiedAt"`
	Status     string      `json:"status"`
}

// Summary is a group or queue in a list.
type Summary struct {
	ClusterSummary
	ClusterID string `json:"clusterId"`
}

// Template names a launch template version.
type Template struct {
	ID      *string `json:"id"`
	Version *string `json:"version"`
}

// Scaling bounds a group's instances.
type Scaling struct {
	MinInstanceCount *int `json:"minInstanceCount"`
	MaxInstanceCount *int `json:"maxInstanceCount"`
}

// InstanceConfig is one instance type of a group.
type InstanceConfig struct {
	InstanceType *string `json:"instanceType,omitempty"`
}

// SpotOptions says how spot capacity is chosen.
type SpotOptions struct {
	AllocationStrategy *string `json:"allocationStrategy,omitempty"`
}

// GroupSlurm is the Slurm part of a group.
type GroupSlurm struct {
	ScaleDownIdleTimeInSeconds *int                `json:"scaleDownIdleTimeInSeconds,omitempty"`
	SlurmCustomSettings        []Setting           `json:"slurmCustomSettings,omitempty"`
	GresCustomSettings         []map[string]string `json:"gresCustomSettings,omitempty"`
}

// LifecycleActions are scripts that nodes run at stages of their life.
type LifecycleActions struct {
	Stages              *LifecycleStages `json:"stages"`
	ScriptCachingPolicy *string          `json:"scriptCachingPolicy,omitempty"`
}

// LifecycleStages are the scripts by stage, in their order.
type LifecycleStages struct {
	NodeBootstrapped []LifecycleScript `json:"nodeBootstrapped,omitempty"`
	NodeReady        []LifecycleScript `json:"nodeReady,omitempty"`
}

// LifecycleScript is one script of a stage.
type LifecycleScript struct {
	Name            *string       `json:"name"`
	ScriptSource    *ScriptSource `json:"scriptSource"`
	Arguments       []string      `json:"arguments,omitempty"`
	OnError         *string       `json:"onError,omitempty"`
	ExecutionPolicy *string       `json:"executionPolicy,omitempty"`
}

// ScriptSource is where a script comes from.
type ScriptSource struct {
	ScriptLocation *string `json:"scriptLocation"`
	S3VersionID    *string `json:"s3VersionId,omitempty"`
	Checksum       *string `json:"checksum,omitempty"`
}

// Group is a compute node group as Create, Get and Update answer it.
type Group struct {
	Name                  string            `json:"name"`
	ID                    string            `json:"id"`
	ARN                   string            `json:"arn"`
	ClusterID             string            `json:"clusterId"`
	CreatedAt             awsapi.Time       `json:"createdAt"`
	ModifiedAt            awsapi.Time       `json:"modifiedAt"`
	Status                string            `json:"status"`
	AMIID                 *string           `json:"amiId,omitempty"`
	SubnetIDs             []string          `json:"subnetIds"`
	PurchaseOption        string            `json:"purchaseOption,omitempty"`
	CustomLaunchTemplate  Template          `json:"customLaunchTemplate"`
	IAMInstanceProfileARN string            `json:"iamInstanceProfileArn"`
	ScalingConfiguration  Scaling           `json:"scalingConfiguration"`
	InstanceConfigs       []InstanceConfig  `json:"instanceConfigs"`
	SpotOptions           *SpotOptions      `json:"spotOptions,omitempty"`
	SlurmConfiguration    *GroupSlurm       `json:"slurmConfiguration,omitempty"`
	NodeLifecycleActions  *LifecycleActions `json:"nodeLifecycleActions,omitempty"`
	ErrorInfo             []ErrorInfo       `json:"errorInfo,omitempty"`
}

// QueueGroup is one group of a queue.
type QueueGroup struct {
	ComputeNodeGroupID *string `json:"computeNodeGroupId,omitempty"`
}

// QueueSlurm is the Slurm part of a queue.
type QueueSlurm struct {
	SlurmCustomSettings []Setting `json:"slurmCustomSettings,omitempty"`
}

// Queue is a queue as Create, Get and Update answer it.
type Queue struct {
	Name                           string       `json:"name"`
	ID                             string       `json:"id"`
	ARN                            string       `json:"arn"`
	ClusterID                      string       `json:"clusterId"`
	CreatedAt                      awsapi.Time  `json:"createdAt"`
	ModifiedAt                     awsapi.Time  `json:"modifiedAt"`
	Status                         string       `json:"status"`
	ComputeNodeGroupConfigurations []QueueGroup `json:"computeNodeGroupConfigurations"`
	SlurmConfiguration             *QueueSlurm  `json:"slurmConfiguration,omitempty"`
	ErrorInfo                      []ErrorInfo  `json:"errorInfo,omitempty"`
}

// The inputs and answers of the operations, by name.
type (
	CreateClusterIn struct {
		ClusterName        *string           `json:"clusterName"`
		Scheduler          *Scheduler        `json:"scheduler"`
		Size               *string           `json:"size"`
		Networking         *Networking       `json:"networking"`
		SlurmConfiguration *ClusterSlurm     `json:"slurmConfiguration"`
		ClientToken        *string           `json:"clientToken"`
		Tags               map[string]string `json:"tags"`
	}
	ClusterOut struct {
		Cluster Cluster `json:"cluster"`
	}
	ClusterRef struct {
		ClusterIdentifier *string `json:"clusterIdentifier"`
	}
	DeleteClusterIn struct {
		ClusterRef
		ClientToken *string `json:"clientToken"`
	}
	UpdateClusterIn struct {
		ClusterRef
		ClientToken        *string       `json:"clientToken"`
		SlurmConfiguration *ClusterSlurm `json:"slurmConfiguration"`
		Scheduler          *struct {
			Version *string `json:"version"`
		} `json:"scheduler"`
	}
	ListIn struct {
		NextToken  *string `json:"nextToken"`
		MaxResults *int    `json:"maxResults"`
	}
	ListOfClusterIn struct {
		ClusterRef
		ListIn
	}
	ListClustersOut struct {
		Clusters  []ClusterSummary `json:"clusters"`
		NextToken string           `json:"nextToken,omitempty"`
	}
	ListGroupsOut struct {
		ComputeNodeGroups []Summary `json:"computeNodeGroups"`
		NextToken         string    `json:"nextToken,omitempty"`
	}
	ListQueuesOut struct {
		Queues    []Summary `json:"queues"`
		NextToken string    `json:"nextToken,omitempty"`
	}

	GroupConfig struct { // what create and update of a group share
		AMIID                 *string           `json:"amiId"`
		SubnetIDs             []string          `json:"subnetIds"`
		PurchaseOption        *string           `json:"purchaseOption"`
		CustomLaunchTemplate  *Template         `json:"customLaunchTemplate"`
		IAMInstanceProfileARN *string           `json:"iamInstanceProfileArn"`
		ScalingConfiguration  *Scaling          `json:"scalingConfiguration"`
		SpotOptions           *SpotOptions      `json:"spotOptions"`
		SlurmConfiguration    *GroupSlurm       `json:"slurmConfiguration"`
		NodeLifecycleActions  *LifecycleActions `json:"nodeLifecycleActions"`
	}
	CreateGroupIn struct {
		ClusterRef
		GroupConfig
		ComputeNodeGroupName *string           `json:"computeNodeGroupName"`
		InstanceConfigs      []InstanceConfig  `json:"instanceConfigs"`
		ClientToken          *string           `json:"clientToken"`
		Tags                 map[string]string `json:"tags"`
	}
	GroupRef struct {
		ClusterRef
		ComputeNodeGroupIdentifier *string `json:"computeNodeGroupIdentifier"`
	}
	UpdateGroupIn struct {
		GroupRef
		GroupConfig
		ClientToken *string `json:"clientToken"`
	}
	DeleteGroupIn struct {
		GroupRef
		ClientToken *string `json:"clientToken"`
	}
	GroupOut struct {
		ComputeNodeGroup Group `json:"computeNodeGroup"`
	}

	QueueConfig struct { // what create and update of a queue share
		ComputeNodeGroupConfigurations []QueueGroup `json:"computeNodeGroupConfigurations"`
		SlurmConfiguration             *QueueSlurm  `json:"slurmConfiguration"`
		ClientToken                    *string      `json:"clientToken"`
	}
	CreateQueueIn struct {
		ClusterRef
		QueueConfig
		QueueName *string           `json:"queueName"`
		Tags      map[string]string `json:"tags"`
	}
	QueueRef struct {
		ClusterRef
		QueueIdentifier *string `json:"queueIdentifier"`
	}
	UpdateQueueIn struct {
		QueueRef
		QueueConfig
	}
	DeleteQueueIn struct {
		QueueRef
		ClientToken *string `json:"clientToken"`
	}
	QueueOut struct {
		Queue Queue `json:"queue"`
	}

	TagIn struct {
		ResourceARN *string           `json:"resourceArn"`
		Tags        map[string]string `json:"tags"`
	}
	UntagIn struct {
		ResourceARN *string  `json:"resourceArn"`
		TagKeys     []string `json:"tagKeys"`
	}
	ListTagsIn struct {
		ResourceARN *string `json:"resourceArn"`
	}
	ListTagsOut struct {
		Tags map[string]string `json:"tags"`
	}
	RegisterIn struct {
		ClusterRef
		BootstrapID *string `json:"bootstrapId"`
	}
	RegisterOut struct {
		NodeID               string            `json:"nodeID"`
		SharedSecret         string            `json:"sharedSecret"`
		Endpoints            []Endpoint        `json:"endpoints"`
		ClusterName          string            `json:"clusterName,omitempty"`
		ComputeNodeGroupID   string            `json:"computeNodeGroupId,omitempty"`
		ComputeNodeGroupName string            `json:"computeNodeGroupName,omitempty"`
		SchedulerVersion     string            `json:"schedulerVersion,omitempty"`
		NodeLifecycleActions *LifecycleActions `json:"nodeLifecycleActions,omitempty"`
	}
	Empty struct{}
)
